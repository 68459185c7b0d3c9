"""What users type: the front door's names with their parameters, the command line's verbs and
options, exit codes, and what an algorithm's class is made of.

Frozen in `public.txt`. A change there is a change of a promise, and wants a note in the changelog:

    python tests/rails/public.py --write
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, is_typeddict

import fedloom
from fedloom import algorithms, extend, testing
from fedloom.algorithms.contract import Algorithm
from fedloom.cli.main import CODES, parser
from fedloom.core import registry, tree

STORED = Path(__file__).with_name("public.txt")
FRONTS = {
    "fedloom": fedloom,
    "fedloom.algorithms": algorithms,
    "fedloom.extend": extend,
    "fedloom.testing": testing,
}
REGISTRIES = (
    "algorithms",
    "models",
    "datasets",
    "losses",
    "metrics",
    "vertical_partitioners",
    "horizontal_partitioners",
    "writers",
    "transports",
    "executors",
)


def lines() -> Iterator[str]:
    for module, front in FRONTS.items():
        for name in sorted(front.__all__):
            yield from of_name(f"{module}.{name}", getattr(front, name))
    yield from (f"contract {name}" for name in sorted(vars(Algorithm)) if name[0] != "_")
    for what in REGISTRIES:
        yield f"registered {what}: {', '.join(sorted(getattr(registry, what)))}"
    for verb, command in commands(parser()):
        for action in command._actions:
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                words = "/".join(action.option_strings) or f"<{action.dest}>"
                choices = "" if action.choices is None else f" {sorted(map(str, action.choices))}"
                yield f"{verb} {words}{choices}"
    for kind, (code, about) in CODES.items():
        yield f"exit code {code}: {kind.__name__}, {about}"


def of_name(name: str, value: Any) -> Iterator[str]:
    if value is tree:  # a module whose functions are the promise
        for member, function in sorted(inspect.getmembers(value, inspect.isfunction)):
            if function.__module__ == value.__name__ and not member.startswith("_"):
                yield f"{name}.{member}({', '.join(inspect.signature(function).parameters)})"
    elif is_dataclass(value):
        yield f"{name}({', '.join(field.name for field in fields(value) if field.init)})"
    elif is_typeddict(value):
        yield f"{name}({', '.join(value.__annotations__)})"
    elif callable(value) and not get_origin(value):
        yield f"{name}({', '.join(inspect.signature(value).parameters)})"
    else:
        yield name
    if inspect.isclass(value) and not issubclass(value, Algorithm):  # its methods are the contract
        own = {field.name for field in fields(value)} if is_dataclass(value) else set()
        for member, method in sorted(vars(value).items()):
            if not member.startswith("_") and member not in own:
                called = inspect.unwrap(getattr(method, "__func__", method))
                parameters = (
                    f"({', '.join(inspect.signature(called).parameters)})"
                    if callable(called)
                    else ""
                )
                yield f"{name}.{member}{parameters}"


def commands(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield top.prog, top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)


def main() -> int:
    asked = argparse.ArgumentParser(description="What users type.")
    asked.add_argument("--write", action="store_true", required=True)
    asked.parse_args()
    STORED.write_text("".join(f"{line}\n" for line in lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
