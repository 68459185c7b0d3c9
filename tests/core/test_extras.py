"""A simulation needs no extra; what does need one says which."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import fedloom
from fedloom.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
MODULES = sorted(module for brings in EXTRAS.values() for module in brings)

BLOCKED = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {MODULES}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""

SIMULATION = """
import fedloom
from fedloom import TDCD, Partition, Privacy, Run, Task, errors, load_dataset

rows = load_dataset("synthetic", rows=80, features=4, goal="classes")
data = Partition(silos=["left", "right"], clients=[2, 1]).place(rows)
run = Run(TDCD(local_steps=2, lr=0.1, batch=20), Task.of(data, "mlp", hidden=[4]), data)
print(len(run.fit(2, every=1, progress=False).records), run._repr_png_())
private = Privacy("trained", 2.0, 0.5, gradient_clip=2.0, gradient_noise=0.5)
try:
    Run(TDCD(local_steps=2, lr=0.1, batch=20, privacy=private), Task.of(data, "linear"), data)
except errors.SettingError as problem:
    print(problem)
"""

COMMANDS = """
from fedloom.cli.main import main

assert main(["list", "losses"]) == 0
sys.exit(main(["keys", "ca", "bank", "--at", "nowhere"]))
"""


def without_extras(code, folder):
    """What it prints, its errors and its exit code, where no extra is installed."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )


def test_a_simulation_needs_none(tmp_path):
    ended = without_extras(SIMULATION, tmp_path)
    assert ended.returncode == 0, ended.stderr
    records, refused = ended.stdout.splitlines()
    assert records == "3 None"
    assert refused == ("accounting for privacy needs dp-accounting: pip install 'fedloom[privacy]'")


def test_a_command_says_which_it_needs(tmp_path):
    ended = without_extras(COMMANDS, tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "pip install 'fedloom[network]'" in ended.stderr
    assert not list(tmp_path.iterdir())


def imported():
    """The packages of others that FedLoom's files import."""
    packages = set()
    for path in Path(fedloom.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [name.name for name in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            packages |= {module.split(".")[0] for module in modules}
    return packages - sys.stdlib_module_names


def test_whatever_is_imported_comes_with_fedloom_or_with_an_extra():
    """Under the name of its module, where that is the package's."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {line.split(">")[0] for line in declared["dependencies"]}
    of_torch = {"triton"}
    assert core | {"sklearn", "grpc"} <= imported()
    assert imported() <= core | set(MODULES) | of_torch


def test_extras_are_those_of_the_metadata():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = declared["optional-dependencies"]
    for extra, brings in EXTRAS.items():
        named = {line.split(">")[0].split("<")[0] for line in of_extras[extra]}
        assert set(brings.values()) <= named, extra
        assert not named & {line.split(">")[0] for line in declared["dependencies"]}, extra
    assert of_extras["all"] == [f"fedloom[{','.join(sorted(EXTRAS))}]"]
    assert "fedloom[test]" in of_extras["dev"]  # which is what make sets up
    tested = re.search(r"fedloom\[([\w,]+)\]", " ".join(of_extras["test"]))[1].split(",")
    assert set(EXTRAS) - set(tested) == {"mlflow"}


def test_the_page_on_installing_names_every_extra():
    page = (ROOT / "docs" / "quickstart.md").read_text()
    for extra, brings in EXTRAS.items():
        assert f"`{extra}`" in page
        if extra not in ("mlflow", "tensorboard"):
            assert all(package in page for package in brings.values()), extra
