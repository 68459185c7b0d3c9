"""Federations that have trained."""

import pytest

from fedloom.config.runfile import RunFile
from fedloom.deployment.rehearsal import Rehearsal
from tests.helpers.predictions import finish

QUICK = {"start": 60.0, "patience": 30.0, "beat": 0.2, "silence": 3.0, "linger": 3.0}


@pytest.fixture
def finished(tmp_path):
    """A federation that has trained."""
    made = []

    def make(text, **waits):
        federation = Rehearsal(RunFile.parse(text), tmp_path / f"r{len(made)}", {**QUICK, **waits})
        made.append(federation)
        run = federation.prepare()
        finish(federation, run)
        return federation, run

    yield make
    for federation in made:
        federation.stop()
