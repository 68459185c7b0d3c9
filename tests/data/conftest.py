"""Real data sets where they are: in FEDLOOM_DATA, or in shared/data beside the repository."""

import os
from pathlib import Path

import pytest

import fedloom.data.datasets  # noqa: F401
from fedloom.core.registry import datasets
from fedloom.data.catalog import load

BESIDE = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def root():
    """The folder of folders; a test that needs it is skipped where there is none."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("PIL")
    given = os.environ.get("FEDLOOM_DATA")
    if given is None and not BESIDE.is_dir():
        pytest.skip("no real data: FEDLOOM_DATA is not set")
    return Path(given) if given is not None else BESIDE


@pytest.fixture
def folder(root):
    """The folder of one set."""

    def get(name):
        path = root / datasets[name].folder
        if not path.is_dir():
            pytest.skip(f"no real data: {path} is not there")
        return path

    return get


@pytest.fixture
def real(root, folder):
    """A real set, loaded."""

    def get(name, **options):
        folder(name)
        return load(name, root, **options)

    return get
