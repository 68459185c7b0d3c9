"""One GPU by a device argument: the numbers of the CPU. Skipped where there is none."""

import pytest
import torch

import fedloom.algorithms  # noqa: F401  (registers them)
from fedloom import Run, tree
from fedloom.registry import algorithms
from fedloom.testing import sample_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name in algorithms
    for number, example in enumerate(algorithms[name].examples())
]


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("algorithm", EXAMPLES)
def test_the_gpu_gives_the_numbers_of_the_cpu(algorithm, engine):
    cpu, gpu = (
        Run(algorithm, *sample_of(algorithm), precision="float64", device=device, engine=engine)
        for device in ("cpu", "cuda")
    )
    cpu.fit(3)
    gpu.fit(3)
    found = tree.map_tensors(lambda a: a.cpu(), algorithm.blocks(gpu.fed, gpu.state))
    assert tree.largest_difference(found, algorithm.blocks(cpu.fed, cpu.state)) < 1e-10
    assert list(cpu.ledger) == list(gpu.ledger)
    assert torch.allclose(cpu.predict(), gpu.predict(), atol=1e-10)
