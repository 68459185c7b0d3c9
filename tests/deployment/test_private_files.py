"""Whatever the umask says: what a party writes is its owner's alone, and so must be what it keeps
secret. Tests look at mode bits, not at access: they may run as root."""

import os
import stat
import subprocess
import sys

import pytest

from fedloom.cli.main import main
from fedloom.config.runfile import RunFile
from fedloom.core.files import SHARED, Appending, private_folder, write_bytes, write_text
from fedloom.core.topology import Client
from fedloom.deployment.rehearsal import Rehearsal
from tests.deployment.test_processes import RUN, SLOW

NORTH = Client("a", "0")
PUBLIC = {"run.toml", "allow.toml", "schedule.json"}  # besides certificates; of a rehearsal
ARRIVAL = '\n[engine]\norder = "arrival"\n'
SHORT = RUN.replace("150", "2")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are of POSIX systems")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_private_unless_it_is_to_be_shared(tmp_path, umask):
    write_bytes(tmp_path / "made/deep/rows", b"1")
    assert mode(tmp_path / "made/deep/rows") == 0o600
    assert mode(tmp_path / "made") == mode(tmp_path / "made/deep") == 0o700
    write_text(tmp_path / "shown/report", "1", SHARED)
    assert mode(tmp_path / "shown/report") == 0o644 & ~umask
    assert mode(tmp_path / "shown") == 0o755 & ~umask


def test_what_others_could_read_is_closed_to_them(tmp_path, umask):
    """Files of an earlier version."""
    own = tmp_path / "out"
    own.mkdir(mode=0o755)
    for name in ("log", "checkpoint"):
        (own / name).touch(mode=0o666)
        (own / name).chmod(0o644)
    private_folder(own)
    log = Appending(own / "log")
    log.add("a line")
    write_bytes(own / "checkpoint", b"1")
    assert mode(own) == 0o700
    assert mode(own / "log") == mode(own / "checkpoint") == 0o600


def test_half_a_file_is_as_private_as_a_whole_one(tmp_path, monkeypatch, umask):
    seen = []
    monkeypatch.setattr(
        "fedloom.core.files.crash",
        lambda point: seen.extend(map(mode, tmp_path.glob(".*.part"))),
    )
    write_bytes(tmp_path / "rows", b"12")
    assert seen == [0o600, 0o600]


def test_a_log_goes_on_where_no_more_files_can_be_opened_and_where_it_was_moved(tmp_path):
    import resource

    log, before = Appending(tmp_path / "log"), resource.getrlimit(resource.RLIMIT_NOFILE)
    log.add("one")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            (tmp_path / "other").touch()
        log.add("two")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.add("three")
    assert (tmp_path / "log.1").read_text() == "one\ntwo\n"
    assert (tmp_path / "log").read_text() == "three\n"


def fedloom(umask, *words):
    command = [sys.executable, "-m", "fedloom", *map(str, words)]
    subprocess.run(command, umask=umask, check=True, capture_output=True, timeout=SLOW)


def open_to_others(folder):
    return [path for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


def test_everything_that_parties_write_is_theirs_alone(tmp_path):
    """A whole rehearsal without any umask, in a run that writes every file there is."""
    run = tmp_path / "run.toml"
    run.write_text(SHORT.replace("local_steps = 2\n", 'name = "vafl"\n') + ARRIVAL)
    fedloom(0, "rehearse", run, "--out", tmp_path / "r")
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"checkpoint.safetensors", "links-2.msgpack", "noise.secret", "audit.jsonl"} <= names
    assert {"agreement.json", "rows.safetensors", "status.json", "ca.key", "done.json"} <= names
    others = open_to_others(tmp_path / "r")
    assert [path for path in others if path.name not in PUBLIC and path.suffix != ".pem"] == []


def test_a_simulations_report_can_be_shared_and_its_model_is_private(tmp_path):
    run, out = tmp_path / "run.toml", tmp_path / "out"
    run.write_text(SHORT)
    fedloom(0, "run", run, "--out", out, "--quiet")
    private = {path for path in out.rglob("*") if not mode(path) & 0o077}
    assert private >= {out / "checkpoint.safetensors", out / "model", *(out / "model").iterdir()}
    for shared in (out, out / "report.html", out / "records.jsonl", out / "run.toml"):
        assert mode(shared) & 0o044 == 0o044, shared


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = Rehearsal(RunFile.parse(SHORT), tmp_path_factory.mktemp("prepared") / "r")
    made.prepare()
    for party in ("a", NORTH):
        text = (made.of(party) / "party.toml").read_text()
        named = text.replace("[party]\n", '[party]\nsalt = "salt"\n')
        (made.of(party) / "party.toml").write_text(named)
        write_text(made.of(party) / "salt", "x" * 40)
    return made


VERBS = {
    "hub": ("a", ["hub"]),
    "client": (NORTH, ["client"]),
    "align": (NORTH, ["align"]),
    "predict": (NORTH, ["predict", "--for", "b/0"]),
    "check": ("a", ["check"]),
}


@pytest.mark.parametrize("bits", [0o640, 0o604], ids=oct)
@pytest.mark.parametrize("secret", ["party.key", "noise.secret", "salt"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_secret_that_others_can_read_is_refused(prepared, verb, secret, bits, capsys):
    party, (word, *options) = VERBS[verb]
    files = [str(prepared.folder / "run.toml"), str(prepared.of(party) / "party.toml")]
    if verb == "check":
        files.insert(1, "--party")
    path = prepared.of(party) / secret
    path.chmod(bits)
    try:
        assert main([word, *files, *options]) == 2
    finally:
        path.chmod(0o600)
    output = "".join(capsys.readouterr())
    assert f"{path} is open to others than its owner (mode {bits:04o}): chmod 600 {path}" in output
