"""The package as users get it: built, installed elsewhere, run without the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
from email import message_from_bytes
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    distributions,
    files,
    requires,
)
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import fedloom
from fedloom.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
WITHIN = 180
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
OFFLINE = ["--no-deps", "--no-index"]


def ran(*words, **more):
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=WITHIN, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    for needed in ("pip", "setuptools"):
        if not list(distributions(name=needed)):  # to look for the module would change distutils
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    ran(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """(its folder, a python that finds it and what it needs, and nothing of the repository)."""
    folder = tmp_path_factory.mktemp("installed")
    ran(*PIP, "install", *OFFLINE, "--target", folder, wheel)
    needs = sysconfig.get_path("purelib")  # with -S, what is in development there is not found
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), needs])}

    def python(*words, cwd):
        return ran(sys.executable, "-S", *words, cwd=cwd, env=env)

    return folder, python


def core_packages(wheel):
    """What the wheel needs without any extra: names of installed packages."""
    with ZipFile(wheel) as file:
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(file.read(metadata)).get_all("Requires-Dist")
    needed, seen = [Requirement(line) for line in lines], set()
    while needed:
        one = needed.pop()
        if one.name in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        try:
            needed += [Requirement(line) for line in requires(one.name) or []]
        except PackageNotFoundError:  # of another build of torch, say
            continue
        seen.add(one.name)
    return seen


@pytest.fixture(scope="module")
def alone(wheel, tmp_path_factory):
    """A new environment with the wheel and what it must have: the folder of its commands."""
    folder = tmp_path_factory.mktemp("alone")
    shown = folder / "core"
    shown.mkdir()
    for name in core_packages(wheel):
        for part in {file.parts[0] for file in files(name) or [] if file.parts[0] != ".."}:
            there = Path(distribution(name).locate_file(part))
            if not (shown / part).exists() and part != "__pycache__":
                (shown / part).symlink_to(there)
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "core.pth").write_text(f"{shown}\n")
    python = folder / "venv" / "bin" / "python"
    ran(*PIP, "--python", python, "install", *OFFLINE, wheel)
    return python.parent


def test_the_wheel_has_every_file_of_the_package(wheel):
    package = ROOT / "src" / "fedloom"
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "fedloom/cli/examples/diabetes.toml" in wanted
    assert wanted - set(ZipFile(wheel).namelist()) == set()


def test_an_example_runs_without_the_repository(installed, tmp_path):
    folder, python = installed
    found = python("-c", "import fedloom; print(fedloom.__file__)", cwd=tmp_path)
    assert Path(found.strip()) == folder / "fedloom" / "__init__.py"
    command = folder / "bin" / "fedloom"
    assert python(command, "--version", cwd=tmp_path).split() == ["fedloom", fedloom.__version__]
    python(command, "example", "diabetes", cwd=tmp_path)
    short = ["--set", "algorithm.rounds=4", "--set", "evaluation.baselines=[]"]
    printed = python(command, "run", "diabetes.toml", *short, cwd=tmp_path)
    assert "tdcd" in printed
    assert (tmp_path / "runs/diabetes/report.html").is_file()
    assert len((tmp_path / "runs/diabetes/records.jsonl").read_text().splitlines()) == 2


def test_without_extras_an_example_runs_and_the_report_is_left_out(alone, tmp_path):
    env = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}

    def run(*words):
        return subprocess.run(
            words,
            cwd=tmp_path,
            env={**env, "PYTHONNOUSERSITE": "1"},
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )

    modules = {module for brings in EXTRAS.values() for module in brings} - {"jinja2"}  # torch's
    code = f"from importlib.util import find_spec; print(*filter(find_spec, {sorted(modules)}))"
    assert run(alone / "python", "-c", code).stdout == "\n"

    assert run(alone / "fedloom", "example", "synthetic").returncode == 0
    trained = run(alone / "fedloom", "run", "synthetic.toml", "--set", "algorithm.rounds=4")
    assert trained.returncode == 0, trained.stderr
    assert "no-exchange" in trained.stdout
    (note,) = (line for line in trained.stderr.splitlines() if line.startswith("note:"))
    assert note == (
        "note: left out: a report needs matplotlib and pillow: pip install 'fedloom[report]'; "
        "then: fedloom report runs/synthetic"
    )
    folder = tmp_path / "runs/synthetic"
    assert {"records.jsonl", "ledger.json", "manifest.json"} <= {p.name for p in folder.iterdir()}
    assert (folder / "model").is_dir()
    assert not (folder / "report.html").exists()
    wanted = {
        ("run", str(ROOT / "examples/diabetes.toml")): "data",
        ("report", str(folder)): "report",
        ("compare", str(folder)): "report",
        ("reproduce", "icassp-fig2c"): "report",
        ("explain", "tdcd", "--draw", "messages.png"): "report",
        ("keys", "ca", "bank", "--at", "keys"): "network",
    }
    all_of_them = f"from fedloom.cli.main import main; print(*map(main, {list(wanted)}))"
    refused = run(alone / "python", "-c", all_of_them)
    assert refused.stdout.split() == ["2"] * len(wanted)
    for line, extra in zip(refused.stderr.splitlines(), wanted.values(), strict=True):
        assert f"pip install 'fedloom[{extra}]'" in line
