"""Packages that add to FedLoom: an installed one is used from a run file, broken ones are named and
take nothing from the others."""

import json
import os
import shutil
import subprocess
import sys
import threading
from importlib.metadata import distributions
from pathlib import Path

import pytest

import fedloom
from fedloom.config.catalogue import KINDS
from fedloom.config.runfile import RunFile
from fedloom.core.errors import SettingError
from fedloom.core.registry import Registry
from fedloom.deployment.rehearsal import Rehearsal
from fedloom.testing import CHECKS
from fedloom.testing.transports import TRANSPORT_CHECKS
from tests.cli.conftest import RUN, process

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
OURS = Path(fedloom.__file__).parents[1]
WITHIN = 180
INSTALL = (
    "pip install --quiet --no-deps --no-build-isolation --no-index --disable-pip-version-check"
)
ADDED = {
    "algorithms": "damped-tdcd",
    "models": "bumps",
    "datasets": "rings",
    "metrics": "balanced-accuracy",
    "losses": "focal",
    "vertical_partitioners": "dealt",
    "horizontal_partitioners": "shards",
    "writers": "csv",
    "transports": "folder",
    "executors": "timing",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the example was installed into, as pip does it."""
    for needed in ("pip", "setuptools"):
        if not list(distributions(name=needed)):  # to look for the module would change distutils
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # setuptools builds beside the sources
    words = [sys.executable, "-m", *INSTALL.split(), "--target", folder / "target"]
    ran = subprocess.run(
        [*words, folder / "source"], capture_output=True, text=True, timeout=WITHIN
    )
    assert ran.returncode == 0, ran.stderr
    return folder / "target"


@pytest.fixture
def command(monkeypatch):
    """The command, finding packages in these folders: (exit code, output, errors)."""

    def call(folders, *words):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [*folders, OURS])))
        ran = process(*words)
        out, err = ran.communicate(timeout=WITHIN)
        return ran.returncode, out, err

    return call


def declare(folder, package, entries, **modules):
    """A package as an installer leaves it: modules, and metadata with entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    text = "".join(
        f"[fedloom.{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
        for group, points in entries.items()
    )
    (info / "entry_points.txt").write_text(text)
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    return folder


@pytest.mark.timeout(600)
def test_an_installed_plugin_is_used_from_a_run_file(installed, command, tmp_path):
    """From run file to saved model, with one of everything that a run file can name."""
    code, out, err = command([installed], "list", "--json")
    assert code == 0, err
    listed = json.loads(out)
    assert "broken" not in listed
    for kind, name in ADDED.items():
        assert name in [entry["name"] for entry in listed[kind]]
    short = ("--set", "algorithm.rounds=20", "--set", "evaluation.every=10")
    code, _, err = command(
        [installed], "run", EXAMPLE / "rings.toml", "--out", tmp_path / "out", "--quiet", *short
    )
    assert code == 0, err
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    first, *_, last = map(json.loads, lines)
    assert last["train_loss"] < first["train_loss"]
    assert last["metrics"]["balanced-accuracy"] > first["metrics"]["balanced-accuracy"]
    assert "balanced-accuracy" in (tmp_path / "out" / "report.html").read_text()
    assert (
        json.loads((tmp_path / "out" / "manifest.json").read_text())["algorithm"] == "damped-tdcd"
    )
    header, *rows = (tmp_path / "out" / "records.csv").read_text().splitlines()
    assert header.startswith("round;bytes;train_loss;accuracy;")
    assert [int(row.split(";")[0]) for row in rows] == [0, 10, 20]
    silos = json.loads((tmp_path / "out" / "manifest.json").read_text())["data"]["silos"]
    assert silos["left"]["columns"] == ["east", "north"]
    code, out, err = command(
        [installed], "compare", tmp_path / "out", "--metric", "balanced-accuracy", "--json"
    )
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["final"] == pytest.approx(last["metrics"]["balanced-accuracy"])
    script = (
        "import fedloom, torch; model = fedloom.load_model('out/model');"
        "print(model.predict({'left': torch.zeros(2, 2), 'right': torch.zeros(2, 2)}).shape)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [installed, OURS]))},
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert ran.stdout.strip() == "torch.Size([2, 3])", ran.stderr


TRANSPORT = """
import tempfile
from pathlib import Path
from fedloom.extend import CarriedTransport
from fedloom.testing.transports import LINK_CHECKS, TRANSPORT_CHECKS, connected
from fedloom_example.shared_folder import SharedFolder

class Wires:
    def __init__(self, topology):
        self.place = Path(tempfile.mkdtemp(dir="."))

    def transport(self, me, run, dials, expected, **options):
        carrier = SharedFolder(self.place, me, patience=2.0)
        return CarriedTransport(me, run, carrier, dials=dials, expected=expected, **options)

    def cut(self, one, other):  # what is on its way is lost
        for file in self.place.glob("*/*"):
            file.unlink(missing_ok=True)

for name, check in TRANSPORT_CHECKS.items():
    check(connected(Wires))
    print(name)
for name in ("resumes", "hears_again", "goodbye", "another_run"):
    LINK_CHECKS[name](Wires)
    print(name)
"""


BATTERY = """
from fedloom.testing import CHECKS, examples_of
from fedloom_example.damped import DampedTDCD

for name, check in CHECKS.items():
    check(examples_of(DampedTDCD)[0])
    print(name)
"""


@pytest.mark.parametrize(
    ("script", "checks"),
    [(TRANSPORT, len(TRANSPORT_CHECKS) + 4), (BATTERY, len(CHECKS))],
    ids=["transport", "algorithm"],
)
def test_what_it_adds_does_what_all_of_its_kind_must(script, checks, installed, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [installed, OURS]))},
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) == checks


class Fresh(Rehearsal):
    """Parties find the packages that this test has put on the path."""

    def launch(self, party, words, env):
        with (self.of(party) / "log").open("w") as log:
            command = [sys.executable, "-m", "fedloom", *words]
            return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def test_parties_use_the_transport_that_their_party_files_name(installed, tmp_path, monkeypatch):
    """Processes of a whole federation, over a folder: the run is the reference engine's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [installed, OURS])))
    file = RunFile.parse(RUN, ["algorithm.rounds=2", "partition.silos=1", "partition.clients=1"])
    rehearsal = Fresh(file, tmp_path / "all", waits={"silence": 20})
    reference = rehearsal.prepare()
    parties = reference.placement.topology.parties
    for party in parties:
        path = rehearsal.of(party) / "party.toml"
        text = path.read_text().replace("[party]", '[party]\ntransport = "folder"', 1)
        path.write_text(f'{text}\n[transport]\nplace = "{tmp_path / "shared"}"\n')
    for party in parties:
        rehearsal.start(party)
    rehearsal.wait(WITHIN)
    assert rehearsal.compare(reference, 0.0).is_equal
    assert len(list((tmp_path / "shared").iterdir())) == len(parties)


@pytest.mark.timeout(600)
def test_broken_plugins_take_nothing_from_others(installed, command, tmp_path):
    """Whatever is wrong with them: the rest works, and they are named where something is missing
    and in the list."""
    broken = declare(
        tmp_path / "broken",
        "broken-example",
        {
            "algorithms": {"absent": "broken_one:Absent", "tdcd": "broken_two:Mine"},
            "models": {"typo": "broken_two:typo", "leaves": "broken_three"},
            "datasets": {"bare": "broken_two:bare"},
            "metrics": {"half": "broken_four:half"},
            "losses": {"none": "broken_two:nothing"},
            "vertical_partitioners": {"number": "broken_two:nothing"},
            "writers": {"lost": "broken_two:lost"},
            "transports": {"grpc": "broken_two:bare"},
            "executors": {"empty": "broken_two:Mine"},
        },
        broken_one="import a_package_that_is_not_there\n",
        broken_two="class Mine: pass\n\ndef bare(): pass\n\nnothing = 3\n",
        broken_three="import sys\nsys.exit('cannot be used here')\n",
        broken_four="from fedloom.records.metrics import metric\n\n"
        "@metric('half', 'number')\ndef half(rows): return 0.5\n\n1 / 0\n",
    )
    places = [broken, installed]
    code, out, err = command(places, "check", EXAMPLE / "rings.toml")
    assert code == 0, err
    code, out, err = command(places, "list", "--json")
    listed = json.loads(out)
    assert code == 0, err
    for kind, name in ADDED.items():
        assert name in [entry["name"] for entry in listed[kind]]
    reasons = {
        "algorithm 'absent'": "No module named 'a_package_that_is_not_there'",
        "algorithm 'tdcd'": "must be a subclass of Algorithm",
        "model 'typo'": "has no attribute 'typo'",
        "model 'leaves'": "SystemExit: cannot be used here",
        "data set 'bare'": "must be made by its decorator",
        "metric 'half'": "ZeroDivisionError",
        "loss 'none'": "must be a class or a function",
        "vertical partitioner 'number'": "must be a class or a function",
        "records writer 'lost'": "has no attribute 'lost'",
        "transport 'grpc'": "is registered already",
        "executor 'empty'": "must be a subclass of Executor",
    }
    assert set(listed["broken"]) == {f"{which} of broken-example" for which in reasons}
    for which, why in reasons.items():
        assert why in listed["broken"][f"{which} of broken-example"]
    names = {kind: [entry["name"] for entry in listed[kind]] for kind in KINDS}
    assert "half" not in names["metrics"], "a module that was imported by half"
    _, out, _ = command(places, "list")
    assert "algorithm 'absent' of broken-example cannot be loaded: ModuleNotFoundError" in out
    choice = ("--set", "algorithm.name=absent")
    code, _, err = command(places, "check", EXAMPLE / "rings.toml", *choice)
    assert code == 2
    assert "unknown algorithm 'absent'" in err
    assert "No module named 'a_package_that_is_not_there'" in err


def registry_of(folder, monkeypatch, points, **modules):
    """A registry whose plugins are in a folder."""
    monkeypatch.syspath_prepend(
        str(declare(folder, "gadget-package", {"gadgets": points}, **modules))
    )
    made = Registry("gadget", "gadgets")
    monkeypatch.setattr("fedloom.core.registry.gadgets", made, raising=False)
    return made


def test_a_plugin_may_register_itself_and_ask_for_others(tmp_path, monkeypatch):
    """By a decorator and an entry point at once, from a module alone, and while it is imported."""
    gadgets = registry_of(
        tmp_path,
        monkeypatch,
        {"both": "gadget_a:both", "module": "gadget_b", "plain": "gadget_a:plain"},
        gadget_a="from fedloom.core.registry import gadgets\n\n"
        "@gadgets.register('both')\ndef both(): return gadgets['module']\n\n"
        "assert set(gadgets) == {'both'}\n\ndef plain(): pass\n",
        gadget_b="from fedloom.core.registry import gadgets\n\n"
        "@gadgets.register('module')\ndef anything(): pass\n",
    )
    assert set(gadgets) == {"both", "module", "plain"}
    assert gadgets["both"]() is gadgets["module"]
    assert gadgets.broken == {}
    with pytest.raises(SettingError, match="'both' is registered already"):
        gadgets.register("both")(print)


def test_names_are_there_for_every_thread(tmp_path, monkeypatch):
    """A thread that asks while another one imports waits for it."""
    gadgets = registry_of(
        tmp_path,
        monkeypatch,
        {"slow": "gadget_slow:slow"},
        gadget_slow="import time\ntime.sleep(0.3)\n\ndef slow(): pass\n",
    )
    names = []
    threads = [threading.Thread(target=lambda: names.append(gadgets["slow"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN)
    assert len(names) == 4


def test_what_is_registered_for_a_test_is_forgotten(tmp_path, monkeypatch):
    """And nothing else is, though its package is first looked at meanwhile."""
    gadgets = registry_of(
        tmp_path, monkeypatch, {"late": "gadget_late:late"}, gadget_late="def late(): pass\n"
    )
    with gadgets.scratch():
        gadgets.register("mine")(print)
        assert set(gadgets) == {"late", "mine"}
    assert set(gadgets) == {"late"}


def test_a_name_of_any_type_is_only_unknown():
    gadgets = Registry("gadget", "gadgets")
    for name in (["a"], {}, None, 3, True):
        with pytest.raises(SettingError, match="unknown gadget"):
            gadgets[name]
