"""The import rule, and the one file that knows the client axis."""

import ast
import subprocess
import sys
from pathlib import Path

import fedloom

ROOT = Path(fedloom.__file__).parent


def imported(path):
    """Modules of the package that a file imports, as paths from its root."""
    here = ("fedloom", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split("."))
            for name in node.names:
                yield ".".join(part for part in (*module, name.name) if part)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def files(folder):
    return sorted((ROOT / folder).glob("**/*.py"))


def assert_free_of(folder, *forbidden):
    for path in files(folder):
        for name in imported(path):
            for ban in forbidden:
                assert not name.startswith(f"fedloom.{ban}"), f"{path} imports {name}"


def test_algorithms_know_neither_engines_nor_transports():
    assert files("algorithms")
    assert_free_of("algorithms", "engines", "transports", "run", "testing")


def test_data_flows_one_way():
    assert_free_of("data", "models", "algorithms", "engines", "transports", "run")
    assert_free_of("models", "algorithms", "engines", "transports", "run")
    assert_free_of("federation", "algorithms", "engines", "transports", "run")
    assert_free_of("transports", "algorithms", "engines", "models", "data", "run")
    assert_free_of("engines", "algorithms", "run", "testing")


def test_one_file_knows_the_client_axis():
    """Only it (and what compiles its work, and the check of a user's module) uses vmap; slope.py
    does, over rows."""
    users = {
        path.relative_to(ROOT).as_posix() for path in files(".") if "vmap" in set(names_in(path))
    }
    assert users == {
        *("engines/clientaxis.py", "engines/compiling.py", "models/check.py", "slope.py"),
    }


def names_in(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_nothing_is_unpickled():
    """pickletools only lists what a pickle would do."""
    for path in files("."):
        names = {name.split(".")[0] for name in imported(path)} | set(names_in(path))
        assert not names & {"pickle", "cloudpickle", "dill", "Unpickler", "allow_pickle"}, path


def test_the_front_door():
    assert sorted(fedloom.__all__) == list(fedloom.__all__) or fedloom.__all__
    for name in fedloom.__all__:
        assert getattr(fedloom, name) is not None
    assert len(fedloom.__all__) <= 25


SHORT = """
import sys, torch
from fedloom import TDCD, Run, Task, linear, partition
x = {"a": torch.ones(8, 2), "b": torch.ones(8, 2)}
rows = partition(x, torch.ones(8), {"a": 2, "b": 3})
Run(TDCD(batch=4), Task({"a": linear(2, 1), "b": linear(2, 1)}, "squared"), rows).fit(2)
slow = {"torch._dynamo", "fedloom.engines.tracing", "fedloom.engines.simplify"}
print(*sorted({name.split(".")[0] for name in sys.modules}), bool(slow & set(sys.modules)))
"""


def test_a_short_run_imports_nothing_heavy():
    """Half a second each, and more for torch's compiler."""
    ran = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, check=True)
    *found, compiles = ran.stdout.split()
    assert not {"scipy", "sklearn", "matplotlib", "pyarrow", "pandas"} & set(found)
    assert compiles == "False"


def test_nothing_that_is_read_can_be_code():
    """No pickle, on the wire or in files: neither its module nor what loads with it."""
    banned = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for path in files("."):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found = {name.name.split(".")[0] for name in node.names}
                found.add((getattr(node, "module", None) or "").split(".")[0])
                assert not found & banned, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}, (
                    path
                )
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, path
