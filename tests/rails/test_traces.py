"""Every battery example and run file comes to what it came to when `stored.json` was written."""

import json

import pytest

from tests.rails import traces

CASES = traces.cases()
BEFORE = json.loads(traces.STORED.read_text())


def test_every_case_is_stored():
    assert set(BEFORE) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_nothing_changed(name):
    found, before = traces.traces(CASES[name]), BEFORE[name]
    assert len(found) == len(before)
    single = name.endswith(".toml")  # single precision, and metrics that count rows
    for now, then in zip(found, before, strict=True):
        assert {key: now[key] for key in ("ledger", "answered", "numbers")} == {
            key: then[key] for key in ("ledger", "answered", "numbers")
        }
        assert now["weights"] == pytest.approx(then["weights"], rel=1e-3 if single else 1e-9)
        for here, there in zip(now["records"], then["records"], strict=True):
            assert here == pytest.approx(there, rel=1e-2 if single else 1e-9, abs=1e-12)
