"""The executor `compiled`: clients' gradients by torch's compiler (compiler.py), recorded as CUDA
graphs on a GPU (cuda_graphs.py). The rest of the work is called as it is.

May import: core, engines.layers, the executor's interface, tracing.
"""

from __future__ import annotations

from typing import Any

from ....core.gradients import gradients_by
from ..executor import Executor, Options, Work
from .compiler import Compiler


class Compiled(Executor):
    """torch.compile, of all clients of a chunk at once.

    One client by itself is a batch of one, so that its gradient is compiled, too.
    """

    name = "compiled"
    batches_one = True

    def __init__(self, options: Options):
        super().__init__(options)
        self.compiler = Compiler(options.device, recordings=options.limits.recordings)

    def run(self, work: Work) -> Any:
        with gradients_by(self.compiler):
            return work.plainly()
