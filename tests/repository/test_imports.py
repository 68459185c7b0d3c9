"""What imports must not bring. Which package may import which is in pyproject.toml (import-linter);
here is what else holds, such as the one file that knows the client axis."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedloom
from fedloom.core.registry import algorithms

ROOT = Path(fedloom.__file__).parent


def files(folder):
    found = sorted((ROOT / folder).glob("**/*.py"))
    assert found, f"no files in {folder}"
    return found


AXIS = {"vmap"}  # whatever goes over clients at once goes through it


def reaches_for(tree, words):
    """Whether code gets hold of something of these names: by import (whatever it is called then),
    as a name, as an attribute, or as text (for getattr). A method so called is another matter."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                if name in words:
                    return True
            case ast.ImportFrom() | ast.Import():
                if any(words & set(name.name.split(".")) for name in node.names):
                    return True
    return False


@pytest.mark.parametrize(
    "code",
    [
        "torch.func.vmap(f)",
        "from torch.func import vmap as over_clients",
        "import torch.vmap as v",
        "getattr(torch.func, 'vmap')",
        "f = vmap",
    ],
)
def test_using_the_client_axis_is_seen_however_it_is_written(code):
    assert reaches_for(ast.parse(code), AXIS)
    assert not reaches_for(ast.parse("class Rule:\n    def vmap(self):\n        vmaps()"), AXIS)


def test_one_file_knows_the_client_axis():
    """Only it (and what compiles its work, and the check of a user's module) uses vmap;
    gradients.py does, over rows."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in files(".")
        if reaches_for(ast.parse(path.read_text()), AXIS)
    }
    assert users == {
        "core/gradients.py",
        "engines/execute/compiled/compiler.py",
        "engines/stacked/lazy.py",
        "models/check.py",
    }


RUNS = """
import sys
import tomllib
from pathlib import Path
import torch
import fedloom
from fedloom import Run
from fedloom.core.registry import algorithms
from fedloom.testing import examples_of, sample_of

torch.set_num_threads(1)  # one to watch
root, seen = Path(fedloom.__file__).parent, set()
codes = {f.__code__ for f in (torch.func.vmap, torch.vmap)}

def watch(frame, event, arg):
    if event == "call" and frame.f_code in codes:
        caller = frame.f_back
        while root not in Path(caller.f_code.co_filename).parents:
            caller = caller.f_back
        seen.add(Path(caller.f_code.co_filename).relative_to(root).as_posix())

sys.setprofile(watch)
for name in algorithms:
    algorithm = examples_of(algorithms[name])[0]
    Run(algorithm, *sample_of(algorithm)).fit(1).loss()
sys.setprofile(None)
print(*sorted(seen))
"""


def test_the_client_axis_is_met_in_that_file_when_algorithms_run():
    """Not by names: whoever calls torch's vmap in a round of each registered algorithm."""
    ran = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["engines/stacked/lazy.py", "models/check.py"]


def test_the_front_door():
    """What a user types, each once, every algorithm too, and nothing else."""
    names = fedloom.__all__
    assert len(set(names)) == len(names)
    assert dir(fedloom) == sorted(names)
    assert None not in [getattr(fedloom, name) for name in names]
    assert {algorithms[name] for name in algorithms} <= {getattr(fedloom, name) for name in names}


SHORT = """
import sys, torch
from fedloom import TDCD, Run, Task, linear, partition
x = {"a": torch.ones(8, 2), "b": torch.ones(8, 2)}
rows = partition(x, torch.ones(8), {"a": 2, "b": 3})
Run(TDCD(batch=4), Task({"a": linear(2, 1), "b": linear(2, 1)}, "squared"), rows).fit(2)
print(*sys.modules)
"""
HEAVY = {"scipy", "sklearn", "matplotlib", "pyarrow", "torch._dynamo"}
HEAVY |= {
    "fedloom.engines.execute.tracing.trace",
    "fedloom.engines.execute.tracing.simplify",
}  # which import torch's compiler


def test_a_short_run_imports_nothing_heavy():
    """Half a second each, and more for torch's compiler."""
    assert all(map(importlib.util.find_spec, HEAVY)), "names that are not there are never imported"
    ran = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, check=True)
    found = set(ran.stdout.split())
    assert "fedloom.engines.stacked.engine" in found
    assert not found & {*HEAVY, "pandas"}


UNPICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNPICKLES |= {"Unpickler"}


def can_unpickle(tree):
    """Whether code reaches for what reads or writes pickles, or for what does so in torch or numpy.
    (pickletools only lists what a pickle would do; numpy refuses pickles unless told to take them.)
    """
    if reaches_for(tree, UNPICKLES):
        return True
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names):
                module = (module or "").split(".")
                if set(module) & UNPICKLES:
                    return True
                if module[0] == "torch" and {"load", "save"} & {name.name for name in names}:
                    return True
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save"):
                return True
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    return True
    return False


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from joblib.numpy_pickle import load",
        "__import__('marshal')",
        "torch.load(path)",
        "from torch import load",
        "from torch.serialization import save as keep",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
    ],
)
def test_unpickling_is_seen_however_it_is_written(code):
    assert can_unpickle(ast.parse(code))
    fine = "import pickletools; from safetensors.torch import save; np.load(p, allow_pickle=False)"
    assert not can_unpickle(ast.parse(fine))


def test_nothing_that_is_read_can_be_code():
    """No pickle, on the wire or in files."""
    assert [path for path in files(".") if can_unpickle(ast.parse(path.read_text()))] == []


def others_private(tree):
    """Private attributes of something else than the object itself: those of a module or an object
    that was made elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (
                name.name for name in node.names if name.name.split(".")[-1].startswith("_")
            )
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            ours = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            tuples = node.attr in ("_asdict", "_fields", "_replace")  # of named tuples: public
            if not (ours or tuples or node.attr.startswith("__")):
                yield node.attr


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("fed._axis.span", ["_axis"]),
        ("from fedloom.runs.run import _maker", ["_maker"]),
        ("self._known = state._asdict()", []),
        ("def _check(f): ...\n_check(len)", []),
    ],
)
def test_reaching_into_something_elses_is_seen(code, found):
    assert list(others_private(ast.parse(code))) == found


@pytest.mark.parametrize("path", files("testing"), ids=lambda path: path.stem)
def test_what_tests_others_needs_nothing_private(path):
    assert list(others_private(ast.parse(path.read_text()))) == []


PLUGIN = ROOT.parents[1] / "examples" / "plugin"


@pytest.mark.parametrize("path", sorted(PLUGIN.glob("src/*/*.py")), ids=lambda path: path.stem)
def test_the_example_package_imports_what_is_promised(path):
    tree = ast.parse(path.read_text())
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedloom")
    }
    assert imported <= {"fedloom", "fedloom.extend"}
    assert not [
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
        if name.name.startswith("fedloom")
    ]


PRIVATE_HOMES = ("engines/execute", "engines/layers")
PRIVATE_PARTS = re.compile(r"\btorch(?:\.\w+)*\._[a-zA-Z]\w*|\bfunctorch\b")


def private_parts(code):
    """Names of torch's private parts, however they are reached."""
    found = set(PRIVATE_PARTS.findall(code))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {f"{node.module}.{name.name}" for name in node.names if name.name[0] == "_"}
    return found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("torch._C._functorch.x()", {"torch._C._functorch"}),
        ("from torch import _dynamo", {"torch._dynamo"}),
        ("from torch.utils._python_dispatch import A", {"torch.utils._python_dispatch"}),
        ("torch.func.grad(self._f)", set()),
    ],
)
def test_private_parts_of_torch_are_seen_however_they_are_reached(code, found):
    assert any(name.startswith(tuple(found)) for name in private_parts(code)) == bool(found)


def test_private_parts_of_torch_are_in_two_packages():
    users = {p.relative_to(ROOT).as_posix() for p in files(".") if private_parts(p.read_text())}
    assert users, "nothing private is used any more: delete this test"
    assert [path for path in users if not path.startswith(PRIVATE_HOMES)] == []


# What the docstrings of packages say of their imports

LAYERS = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
][0]["layers"]
BELOW = {
    name: {other for layer in LAYERS[at + 1 :] for other in layer.split(" | ")}
    for at, layer in enumerate(LAYERS)
    for name in layer.split(" | ")
}
TOP_PACKAGES = sorted(path.parent for path in files(".") if path.parent.parent == ROOT)


def imported_packages(folder):
    """FedLoom's packages that the modules of a top-level package import."""
    found = set()
    for path in folder.rglob("*.py"):
        package = ["fedloom", *path.relative_to(ROOT).parent.parts]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base = [*base, *(node.module or "").split(".")]
                named = [[*base, name.name] for name in node.names]
            elif isinstance(node, ast.Import):
                named = [name.name.split(".") for name in node.names]
            else:
                continue
            found |= {parts[1] for parts in named if parts[0] == "fedloom"}
    return {name for name in found if (ROOT / name).is_dir()} - {folder.name}


@pytest.mark.parametrize("folder", sorted(set(TOP_PACKAGES)), ids=lambda folder: folder.name)
def test_a_package_imports_what_its_docstring_says(folder):
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    said = said.partition("May import:")[2].replace("\n", " ")
    assert said, "a package's docstring says what it may import"
    known = {name for name in BELOW if re.search(rf"\b{name}\b", said)}
    allowed = BELOW[folder.name] if "everything" in said else known
    assert imported_packages(folder) <= allowed
