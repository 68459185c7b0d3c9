"""The package as users get it: built, installed elsewhere, run without the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

import fedloom

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
    told = python(command, "run", "diabetes.toml", *short, cwd=tmp_path)
    assert "tdcd" in told
    assert (tmp_path / "runs/diabetes/report.html").is_file()
    assert len((tmp_path / "runs/diabetes/records.jsonl").read_text().splitlines()) == 2
