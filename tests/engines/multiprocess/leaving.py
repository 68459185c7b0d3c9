"""Run by torchrun: which threads of the process group remain after leaving it. Argument: the folder
for the result."""

import json
import os
import sys
from pathlib import Path

from fedloom.engines.multiprocess.ranks import joined


def threads():
    tasks = Path("/proc/self/task").iterdir()
    return sorted(name for task in tasks if "gloo" in (name := (task / "comm").read_text()))


with joined(60) as ranks:
    ranks.numbers("here")
    import torch._dynamo  # noqa: F401  (as tracing does, once a run has begun)

    before = threads()
threads = json.dumps([before, threads()])
(Path(sys.argv[1]) / f"rank-{os.environ['RANK']}.json").write_text(threads)
