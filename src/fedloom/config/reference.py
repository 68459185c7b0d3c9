"""The run-file reference, from the code: python -m fedloom.config.reference > docs/run-file.md"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..algorithms.shared.hub_steps import HubStep
from ..algorithms.shared.optimizers import Optimizer
from ..algorithms.shared.step_sizes import RULES
from ..core.settings import Field, fields_of
from ..privacy.settings import Privacy
from . import sections
from .catalogue import catalogue, field_rows
from .convert import CHOICES
from .sections import EngineSettings, Evaluation, Output, Stopping, about

HEAD = """\
# Run files

After this page you can write a run file, and look up every key.

A run is one TOML file. Only `[data]` is needed; everything else has a default. An unknown key or a
value of the wrong type is refused, with its line and the nearest valid key.

- `--set section.key=value` overrides any key.
- The run's folder gets the complete file, `run.toml`, with every default filled in. It is a run
  file itself.
- Paths of inputs are relative to the run file. The output folder, and every path on the command
  line (also in `--set`), are relative to where the command is started.
- TOML has no empty value. Where a key may be empty, write the word `"none"`.

`python -m fedloom.config.reference` makes this page from the code.
"""

OWN = """\
### Your own tables

Instead of `name`, give a table of silos, with a CSV or Parquet file for each client
(`[data.silos.bank]`, then `north = "bank-north.csv"`). One path in place of a table is a silo with
one client. See [Your own tables](tables.md)."""

MODEL = """\
The model of every silo is sized by the data: its inputs follow from the rows, its outputs from the
labels. `[model.silos.bank]` gives one silo another model or other settings. With `embedding` and
`[model.head]`, silos give embeddings of that width, and the head turns the joint one into scores.
`[model.middle]` goes before the head: the server's part in `splitnn-u`.

The settings of the named model are keys of the section, too; they follow this table. A file without
this section gets a model that suits tables: `name = "mlp"`, `hidden = [32]`."""

ALGORITHM = """\
The algorithm, and for how long. Its own settings are keys of the section, too. A file without this
section gets settings that suit tables, and `--set` changes single ones of them:
`name = "tdcd"`, `local_steps = 5`, `lr = 0.05`, `minibatch = "fresh"`, `hub = {name = "adam", lr =
0.01}`, `rounds = 1000`. A file with the section has the defaults below, which are the papers'.
See [Sensible defaults](defaults.md#a-first-run-on-tables)."""


OPTIMIZER = """\
## [algorithm.optimizer]

Of the local steps: `optimizer = "adam"`, or a table with a `name` and settings (none: `sgd`). See
[Optimisers](optimisers.md).
"""

HUB = """\
## [algorithm.hub]

What a hub does with its clients' mean: `hub = "adam"`, or a table with a `name` and settings (none:
`relaxed`). See [Optimisers](optimisers.md).
"""
STOPPING = """\
When training ends before its last round, by the validation rows (`validation` in `[data]`). The
model of the best evaluation is kept. It is on where this section is there, even if empty. See
[Training](training.md)."""

PARTITIONERS = """\
One of [another package](plugins.md) may take settings: `vertical = {name = "mine", width = 3}`."""

LOSSES = """\
## Losses

A loss is a name or, with settings, a table: `loss = {name = "huber", delta = 2.0}`. See
[Losses](losses.md)."""


def page() -> str:
    return "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    yield HEAD
    words = "A registered data set. Its own settings are keys of the section, too."
    yield from _section("data", words, sections.NAMED)
    yield from _data_sets()
    yield OWN + "\n"
    yield _table(sections.OWN)
    partition = sections.partition_fields()
    yield from _section(
        "partition", "How a data set is divided. See [Partitions](partitions.md).", partition
    )
    yield "`vertical` is the name of one of these, which decide who gets which columns:\n"
    yield _names("vertical_partitioners")
    yield "`horizontal` of one of these, which decide who gets which rows:\n"
    yield _names("horizontal_partitioners")
    yield PARTITIONERS + "\n"
    yield from _section("model", MODEL, sections.MODEL)
    yield from _entries("models")
    yield LOSSES + "\n"
    yield from _entries("losses")
    yield from _section("algorithm", ALGORITHM, sections.RUN)
    yield from _entries("algorithms")
    yield "## Step sizes\n"
    yield 'A step size is a number or a rule: `lr = {rule = "cosine", lr = 0.1, steps = 1000}`.\n'
    for name, rule in RULES.items():
        yield f"### {name}\n"
        yield f"{about(rule)}\n"
        yield _table(fields_of(rule))
    yield OPTIMIZER
    yield from _choices(Optimizer, "optimizer")
    yield HUB
    yield from _choices(HubStep, "hub")
    yield from _section("algorithm.privacy", "See [Privacy](privacy.md).", fields_of(Privacy))
    for name, kind in (("engine", EngineSettings), ("network", None)):
        fields = sections.network_fields() if kind is None else fields_of(kind)
        words = "Links and speeds, for the virtual clock." if kind is None else about(kind)
        yield from _section(name, words, fields)
    yield from _section("evaluation", about(Evaluation), fields_of(Evaluation))
    yield from _section("stopping", STOPPING, fields_of(Stopping))
    yield from _section("output", about(Output), fields_of(Output))
    yield "Records writers, with what can be said in `[output.writers.NAME]`:\n"
    yield from _entries("writers")


def _choices(hint: Any, title: str) -> Iterator[str]:
    for name, kind in CHOICES[hint].kinds.items():
        yield f"### {title}: {name}\n"
        yield f"{about(kind)}\n"
        yield _table(fields_of(kind))


def _section(name: str, words: str, fields: Mapping[str, Field]) -> Iterator[str]:
    yield f"## [{name}]\n"
    yield words + "\n"
    yield _table(fields)


def _data_sets() -> Iterator[str]:
    entries = list(catalogue("datasets"))
    lines = [f"| `{entry['name']}` | {entry['about']} |" for entry in entries]
    yield "\n".join(["| data set | what it has |", "|---|---|", *lines]) + "\n"
    alike: dict[str, list[str]] = {}  # a table of settings: the sets that have it
    for entry in entries:
        if entry["fields"]:
            alike.setdefault(_rows(entry["fields"]), []).append(f"`{entry['name']}`")
    for rows, names in alike.items():
        yield f"Settings of {', '.join(names)}:\n"
        yield rows


def _entries(kind: str) -> Iterator[str]:
    for entry in catalogue(kind):
        yield f"### {entry['name']}\n"
        yield f"{entry['about']}\n"
        if entry["fields"]:
            yield _rows(entry["fields"])


def _names(kind: str) -> str:
    lines = ["| name | |", "|---|---|"]
    lines += [f"| `{entry['name']}` | {entry['about']} |" for entry in catalogue(kind)]
    return "\n".join(lines) + "\n"


def _table(fields: Mapping[str, Field]) -> str:
    return _rows(field_rows(fields))


def _rows(fields: list[dict[str, Any]]) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
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
