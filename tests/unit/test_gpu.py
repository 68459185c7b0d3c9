"""One GPU by a device argument: the numbers of the CPU. Skipped where there is none."""

import pytest
import torch

from fedloom import Run, tree
from fedloom.algorithms import TDCD, Alone, Central, TDCDPrivateLabels
from fedloom.testing import placement, task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("algorithm", [TDCD, TDCDPrivateLabels, Central, Alone])
def test_the_gpu_gives_the_numbers_of_the_cpu(algorithm, engine):
    for example in algorithm.examples():
        cpu, gpu = (
            Run(
                example, task(), placement(), precision="float64", device=device, engine=engine
            ).fit(3)
            for device in ("cpu", "cuda")
        )
        found = tree.map_tensors(lambda a: a.cpu(), example.blocks(gpu.fed, gpu.state))
        assert tree.largest_difference(found, example.blocks(cpu.fed, cpu.state)) < 1e-10
        assert list(cpu.ledger) == list(gpu.ledger)
        assert torch.allclose(cpu.predict(), gpu.predict(), atol=1e-10)
