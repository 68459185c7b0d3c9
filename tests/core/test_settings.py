"""Settings are checked where they are given, in the words of a run file's errors."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

from fedloom import (
    TDCD,
    Cosine,
    Partition,
    Placement,
    Run,
    Shard,
    Task,
    linear,
    load_dataset,
    mlp,
    read_tables,
)
from fedloom.algorithms.shared.step_sizes import RULES
from fedloom.config.runfile import RunFile
from fedloom.core.errors import FedLoomError, SettingError
from fedloom.core.registry import algorithms
from fedloom.core.settings import fields_of
from fedloom.models.losses import CrossEntropy
from fedloom.privacy.settings import Privacy

NAMES = sorted(algorithms)
IRIS = Partition(silos=["left", "right"], clients=[2, 3]).place(load_dataset("iris"))
TASK = Task.of(IRIS, "linear")
RUN = Run(TDCD(local_steps=1, batch=20), TASK, IRIS).fit(1)


def settings_of(name):
    return fields_of(algorithms[name])


def wrong(field):
    """What a setting cannot be, and how that is said."""
    base = str(field.hint)
    if "float" in base:
        yield from ((v, r"a number.* is expected, not") for v in ("0.1", math.nan, math.inf, True))
        yield 1j, "a number.* is expected, not a complex"
        yield -1, r"must be (above|at least) 0, not -1"
    elif "int" in base and "dict" not in base:
        yield from ((v, "a whole number is expected, not") for v in ("1", 2.5, True, math.nan))
        yield -1, r"must be at least [01], not -1"
    elif "Literal" in base:
        yield "nothing", r'"nothing" is not one of the choices; '
        made = "(a table with )?(an optimiser|a hub's step)"
        yield 3, f"3 is not one of the choices; |.* or {made} is expected, not 3"
    elif "bool" in base:
        yield from ((v, "true or false is expected, not") for v in (1, "true", None))
    elif "str" in base and "dict" not in base:
        yield 3, "text is expected, not 3"
    else:
        yield 3, "(a table|a Privacy) is expected, not 3"
    if "StepSize" in base:
        yield Cosine, "a number or a step-size rule is expected, not the class Cosine"
    if "None" not in base:
        yield None, ".*is expected, not None|None is not one of the choices"


SETTINGS = [(name, setting) for name in NAMES for setting in settings_of(name)]


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=map("-".join, SETTINGS))
def test_constructors_check_their_own_settings(name, setting):
    """Every setting of every registered algorithm, when one is made, replaced or named in a run
    file: in the same words, with what is wrong with it."""
    kind = algorithms[name]
    for value, message in wrong(settings_of(name)[setting]):
        own = f"{kind.__name__}: {setting}:? ({message})"
        with pytest.raises(SettingError, match=own):
            kind(**{setting: value})
        with pytest.raises(SettingError, match=own):
            dataclasses.replace(kind(), **{setting: value})
        if isinstance(value, complex | type) or value is None:
            continue  # TOML has no such thing
        text = f'data.name = "iris"\n[algorithm]\nname = "{name}"\n{setting} = {as_toml(value)}\n'
        with pytest.raises(SettingError) as problem:
            RunFile.parse(text)
        start, words = f"run file:4: algorithm.{setting}: ", own.partition(":? ")[2]
        said = str(problem.value).replace("a table with a rule", "a step-size rule")
        assert said.startswith(start)
        assert re.search(words, said)


def as_toml(value):
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_step_sizes_check_their_settings(rule):
    kind, good = RULES[rule], dict.fromkeys(fields_of(RULES[rule]), 3)
    assert kind(**good)(0) > 0
    for name in good:
        for value in (-1, "3", math.nan, True, None):
            with pytest.raises(SettingError, match=f"{kind.__name__}: {name}"):
                kind(**{**good, name: value})


def test_settings_of_privacy_are_checked_when_it_is_made():
    good = {"mode": "noise-only", "clip": 1.0, "noise": 0.5}
    for wrong, message in (
        ({"mode": "trianed"}, "\"trianed\" is not one of the choices; did you mean 'trained'"),
        ({"clip": -1}, "clip must be above 0, not -1"),
        ({"noise": "0.5"}, 'Privacy: noise: a number is expected, not "0.5"'),
        ({"delta": 0}, "delta must be above 0 and below 1"),
        ({"releases": 2.5}, "Privacy: releases: a whole number is expected, not 2.5"),
        ({"mode": "trained"}, "give gradient_clip"),
    ):
        with pytest.raises(SettingError, match=message):
            Privacy(**{**good, **wrong})
        with pytest.raises(SettingError, match=message):
            dataclasses.replace(Privacy(**good), **wrong)
    text = 'data.name = "iris"\n[algorithm.privacy]\nmode = "noise-only"\nnoise = -1\n'
    with pytest.raises(SettingError, match=r"file:4: algorithm\.privacy\.noise: must be above 0"):
        RunFile.parse(text)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Run(TASK, TDCD(), IRIS), "an Algorithm is expected, not a Task; the order is alg"),
        (lambda: Run(TDCD(), IRIS, TASK), "Run: task: a Task is expected, not a Federated; the or"),
        (lambda: Run(TDCD, TASK, IRIS), r"not the class TDCD: TDCD\(\.\.\.\) makes one"),
        (lambda: Run(TDCD(), TASK, "iris"), 'a Federated or a Placement is expected, not "iris"'),
        (lambda: Task.of("iris"), 'Task.of: data: a Federated is expected, not "iris"'),
        (lambda: Task.of(IRIS.train), "a Federated is expected, not a Placement"),
        (lambda: Task.of(load_dataset("iris")), "not cut yet: Partition"),
        (lambda: Task.of(IRIS, "mlp", hidden=16), "model mlp: hidden: a list of whole numbers is "),
        (lambda: Task.of(IRIS, "mlp", hidden=[0]), "model mlp: hidden must be at least 1, not 0"),
        (lambda: mlp(3, 16, 1), "mlp: hidden: a list of whole numbers is expected, not 16"),
        (lambda: Task({"a": linear(3)}, CrossEntropy), "not the class CrossEntropy: CrossEntropy"),
        (lambda: Task({"a": torch.nn.Linear}, "squared"), "function that makes a block failed"),
        (lambda: RUN.fit(2.5), "Run.fit: rounds: a whole number is expected, not 2.5"),
        (lambda: RUN.fit("10"), 'Run.fit: rounds: a whole number is expected, not "10"'),
        (lambda: RUN.fit(-1), "Run.fit: rounds must be at least 0, not -1"),
        (lambda: Partition(silos=3.0), "Partition: silos: a whole number or a list of text "),
        (lambda: Partition(silos=0), "Partition: silos must be at least 1, not 0"),
        (lambda: Partition(clients={"a": "3"}), 'clients.a: a whole number is expected, not "3"'),
        (lambda: read_tables("a.csv"), r"\{silo: \{client: path\}\} or \{silo: path\} is expected"),
        (lambda: read_tables({"a": 3}), "client a/all: a path is expected, not 3"),
        (lambda: read_tables({"a": [1]}), "client a/all: a path is expected, not a list"),
        (lambda: Placement.of({"a": Shard([1], [[1.0]])}), "of silo a, there is a Shard"),
        (lambda: load_dataset("iris", standardise=1), "data set iris: standardise: true or false"),
    ],
)
def test_messages_of_mistakes(call, message):
    with pytest.raises(FedLoomError, match=message):
        call()


def test_numbers_of_numpy_are_numbers():
    made = TDCD(local_steps=np.int64(3), lr=np.float32(0.5), batch=np.int32(20))
    assert Run(made, TASK, IRIS).fit(np.int64(1)).round == 1


def test_lists_and_tuples_are_one():
    assert Partition(silos=("left", "right")) == Partition(silos=["left", "right"])
    placed = Partition(silos=("left", "right"), clients=(1, 2)).place(load_dataset("iris"))
    assert placed.train.topology.silos == ("left", "right")
