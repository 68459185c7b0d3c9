"""Small run files and the command, as a user would call it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.cli.main import main

RUN = """\
[data]
name = "iris"

[partition]
clients = [2, 3]

[algorithm]
local_steps = 2
lr = 0.05
batch = 20
rounds = 6

[evaluation]
every = 2

[output]
checkpoint_every = 1
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RUN)
    return path


@pytest.fixture
def fedloom(capsys):
    """The command in this process: returns (exit code, output, errors)."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as leaving:  # argparse's own
            code = leaving.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def process(*arguments, **options):
    """The command as a program of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedloom", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def records(folder):
    """A run's records, but for the seconds they took."""
    lines = (Path(folder) / "records.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    for line in entries:
        del line["wall"]
    return entries
