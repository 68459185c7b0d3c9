"""Streams of a secret: a cipher's, and of one run only."""

import numpy as np
import pytest
from scipy import stats

from fedloom.core.rng import CipherStream, Secrets, Streams
from fedloom.core.topology import Client

ME, SOME = Client("ash", "0"), b"a secret of more than thirty-two bytes"


def streams(seed=3, run="r", secret=SOME):
    return Streams(seed, Secrets(run, {str(ME): secret}))


def test_the_cipher_is_chacha20():
    """RFC 8439, A.1: the first block of a key and a nonce of zeros, with counter 0."""
    words = CipherStream(bytes(32))._raw(8)
    block = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert words.astype("<u8").tobytes() == block


def test_numbers_are_normal_and_uniform():
    stream = streams().own(ME, "noise")
    assert stats.kstest(stream.normal(100_000), "norm").pvalue > 0.001
    assert stats.kstest(stream.uniform(100_000), "uniform").pvalue > 0.001
    assert np.isfinite(streams().own(ME, "more").normal(1_000_000)).all()


def test_the_ends_of_the_cipher_s_numbers_are_finite(monkeypatch):
    for word in (0, 2**64 - 1):
        monkeypatch.setattr(
            CipherStream, "_raw", lambda self, n, w=word: np.full(n, w, dtype=np.uint64)
        )
        assert np.isfinite(streams().own(ME).normal(3)).all()


@pytest.mark.parametrize(
    "other",
    [streams(run="s"), streams(secret=SOME + b"!"), Streams(3), Streams(4)],
    ids=["another run", "another secret", "no secret", "another seed"],
)
def test_nothing_in_common(other):
    first = streams()
    assert (first.own(ME, 1).normal(64) != other.own(ME, 1).normal(64)).all()
    assert first.own(ME, 1).mark != other.own(ME, 1).mark


def test_the_same_again_and_common_streams_are_common():
    assert (streams().own(ME, 1).normal(8) == streams(seed=9).own(ME, 1).normal(8)).all()
    assert (streams().own(ME, 1).normal(8) != streams().own(ME, 2).normal(8)).all()
    assert (streams().common(1).normal(8) == Streams(3).common(1).normal(8)).all()
    assert (streams().own("birch").normal(8) == Streams(3).own("birch").normal(8)).all()


def test_a_secret_is_not_printed():
    assert "secret" not in repr(streams()).lower()
