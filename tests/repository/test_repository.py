"""Files of the repository that no program of ours reads: CI, hooks, citation, version."""

import importlib.metadata
import re
import tomllib
from collections import Counter
from pathlib import Path

import yaml

import fedloom

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_ci_only_calls_make():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands} == {"test", "docs"} <= TARGETS
    assert {command.split()[0] for command in commands} == {"make"}


def test_ci_has_every_python_and_the_torch_that_is_admitted():
    """One minor version of torch, that of constraints.txt: the oldest and the newest are tested."""
    matrix = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": ["3.11", "3.12", "3.13"]}
    assert PROJECT["requires-python"] == ">=3.11"
    (admitted,) = (line for line in PROJECT["dependencies"] if line.startswith("torch"))
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    major, minor = map(int, pinned.groups())
    assert admitted == f"torch>={major}.{minor},<{major}.{minor + 1}"


def test_hooks_are_what_make_lint_runs():
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text()
    for hook in repo["hooks"]:
        words = [word for word in hook["entry"].split() if word != "--force-exclude"]
        assert " ".join(words).replace(".venv/bin", "$(BIN)") in makefile, hook["id"]


def test_there_is_one_version_number():
    assert PROJECT["dynamic"] == ["version"]
    assert importlib.metadata.version("fedloom") == fedloom.__version__
    citation = read("CITATION.cff")
    assert "version" not in citation
    assert citation["license"] == PROJECT["license"]


def test_the_page_for_contributors_names_commands_that_there_are():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {
        word for line in re.findall(r"^make ([a-z ]+)", text, re.MULTILINE) for word in line.split()
    }
    assert {"test", "coverage", "graph"} <= named <= TARGETS
    for path in re.findall(r"`((?:src|docs|tests)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_changelog_has_versions_and_the_usual_sections():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == f"Unreleased: {fedloom.__version__.removesuffix('.dev0')}"
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert found
        assert len(set(found)) == len(found)
        assert set(found) <= set(kinds)


def test_files_and_folders_of_the_code_are_small():
    """What CONTRIBUTING says of files, and no folder that one has to search."""
    paths = list((ROOT / "src").rglob("*.py"))
    long = {path.name: n for path in paths if (n := len(path.read_text().splitlines())) > 400}
    assert not long
    crowded = {
        folder.name for folder, n in Counter(path.parent for path in paths).items() if n > 19
    }
    assert not crowded
