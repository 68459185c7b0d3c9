"""The run-file reference, from the code: python -m fedloom.config.reference > docs/run-file.md"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..algorithms.step_sizes import RULES
from ..core.settings import Field, fields_of
from ..privacy.settings import Privacy
from . import sections
from .catalogue import catalogue, told
from .sections import Engine, Evaluation, Output, about

HEAD = """\
# Run files

A run is one TOML file. Only `[data]` is needed; everything else has a default. An unknown key or a
value of the wrong type is refused with its line and the nearest valid key.
`--set section.key=value` overrides any key, and the complete file with every default filled in is
written as `run.toml` into the run's folder; it is a run file itself.

Paths of inputs are relative to the run file; the output folder, and every path on the command line
(those in `--set` included), to where the command is started. TOML has no empty value: the word
`"none"` stands for it where a key may be empty.

This page is made from the code by `python -m fedloom.config.reference`.
"""

OWN = """\
Your own tables, instead of a registered set: a table of silos, with a CSV or Parquet file for each
client (`[data.silos.bank]`, then `north = "bank-north.csv"`), or one file for a silo with one
client. See [Tables as they are](tables.md)."""

MODEL = """\
The model of every silo is sized by the data: its inputs follow from the rows, its outputs from the
labels. `[model.silos.bank]` gives one silo another model or other settings. With `embedding` and
`[model.head]`, silos give embeddings of that width, and the head turns the joint one into scores.
`[model.middle]` goes before the head: the server's part in `splitnn-u`.
The settings of the named model are keys of the section, too:"""


def page() -> str:
    return "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    yield HEAD
    yield from _section("data", "A registered data set, and its settings below.", sections.NAMED)
    yield from _each("datasets")
    yield OWN + "\n"
    yield _table(sections.OWN)
    partition = sections.partition_fields()
    yield from _section(
        "partition", "How a data set is cut. See [Partitions](partitions.md).", partition
    )
    yield from _section("model", MODEL, sections.MODEL)
    yield from _each("models")
    algorithm = "The algorithm, and for how long. Its own settings are keys of the section, too:"
    yield from _section("algorithm", algorithm, sections.RUN)
    yield from _each("algorithms")
    yield 'A step size is a number or a rule, `lr = {rule = "cosine", lr = 0.1, steps = 1000}`:\n'
    for name, rule in RULES.items():
        yield f"**`{name}`**: {about(rule)}\n"
        yield _table(fields_of(rule))
    yield "`[algorithm.privacy]`: see [Privacy](privacy.md).\n"
    yield _table(fields_of(Privacy))
    for name, kind in (("engine", Engine), ("network", None)):
        fields = sections.network_fields() if kind is None else fields_of(kind)
        words = "Links and speeds, for the virtual clock." if kind is None else about(kind)
        yield from _section(name, words, fields)
    yield from _section("evaluation", about(Evaluation), fields_of(Evaluation))
    yield from _section("output", about(Output), fields_of(Output))


def _section(name: str, words: str, fields: Mapping[str, Field]) -> Iterator[str]:
    yield f"## [{name}]\n"
    yield words + "\n"
    yield _table(fields)


def _each(kind: str) -> Iterator[str]:
    for entry in catalogue(kind):
        yield f"**`{entry['name']}`**: {entry['about']}\n"
        if entry["fields"]:
            yield _rows(entry["fields"])


def _table(fields: Mapping[str, Field]) -> str:
    return _rows(told(fields))


def _rows(fields: list[dict[str, Any]]) -> str:
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for field in fields:
        default = "required" if field["required"] else f"`{_toml(field['default'])}`"
        cells = (f"`{field['name']}`", field["type"], default, field["about"])
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and value != "none" else str(value)


if __name__ == "__main__":
    print(page(), end="")
