"""Small federations whose blocks have BatchNorm, for the battery."""

from torch import nn

from fedloom import Task
from fedloom.testing.samples import CLASSES, placement

WIDTHS = {"ash": 4, "birch": 5, "cedar": 3}


def block(silo, outputs):
    """Of the battery's silo: a table, a table that begins with its norm, a series."""

    def make():
        if silo == "ash":
            layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, outputs)]
        elif silo == "birch":
            layers = [nn.BatchNorm1d(3, affine=False), nn.Linear(3, outputs)]
        else:  # of convolutions, over time
            convolution = nn.Conv1d(4, 3, 2), nn.BatchNorm1d(3, momentum=0.3, eps=1e-3)
            layers = [*convolution, nn.Flatten(), nn.Linear(3, outputs)]
        return nn.Sequential(*layers)

    return make


def sample(silos=3, clients=None, head=False):
    """As the battery's own federation."""
    names = list(WIDTHS)[:silos]
    blocks = {j: block(j, WIDTHS[j] if head else CLASSES) for j in names}
    top = None
    if head:
        width = sum(WIDTHS[j] for j in names)
        top = lambda: nn.Linear(width, CLASSES)  # noqa: E731
    combine = "concat" if head else "sum"
    return Task(blocks, "cross-entropy", head=top, combine=combine), placement(silos, clients)
