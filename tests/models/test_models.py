"""Models, and the check that a user's module can be trained by clients at all."""

import pytest
import torch
from torch import nn

from fedloom import TDCD, Run, Task, cnn, linear, lstm, mlp, partition, resnet18
from fedloom.core import tree
from fedloom.core.errors import ModelError, SettingError
from fedloom.models.block import Block
from fedloom.models.check import check_block

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Mixes(nn.Module):
    """Subtracts the mean over the rows it is given together."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.centre = Centre()

    def forward(self, x):
        return self.centre(self.first(x))


class Centre(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Decides(nn.Module):
    """Looks at a number to decide."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.gate = Gate()

    def forward(self, x):
        return self.gate(self.linear(x))


class Gate(nn.Module):
    def forward(self, x):
        return torch.stack([row if row.sum().item() > 0 else -row for row in x])


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.noise = AddNoise()

    def forward(self, x):
        return self.noise(self.linear(x))


class AddNoise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Inverse(nn.Module):
    def forward(self, x):
        return 1 / (x - x)


class Running(nn.Module):
    """A running sum over rows: the first row alone looks innocent."""

    def forward(self, x):
        return x.cumsum(0)


class TimeFirst(nn.Module):
    """The classic mistake: rows taken for time."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 3)
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(self.rnn(x.unflatten(1, (2, 2)))[0][:, -1])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout(0.2)),
            r"layer 1 is AlphaDropout with dropout 0.2 in train mode.*nn.Dropout.*eval mode",
        ),
        (nn.Sequential(nn.Linear(4, 3), Centre()), r"layer 1 \(Centre\) mixes rows"),
        (Mixes(), r"layer centre \(Centre\) mixes rows"),
        (Noisy(), r"layer noise \(AddNoise\) gives another result each time"),
        (Decides(), r"layer gate \(Gate\) cannot be run for several clients at once"),
        (
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
            r"layer 0 \(ReLU\) changes its input",
        ),
        (nn.LazyLinear(3), "weight has no size yet"),
        (nn.Sequential(nn.Linear(4, 3), Inverse()), "gives NaN or infinity for the first rows"),
        (nn.Sequential(nn.Linear(4, 3), Running()), r"layer 1 \(Running\) mixes rows"),
        (TimeFirst(), r"layer rnn \(LSTM\) mixes rows.*batch_first=True"),
        (nn.Linear(4, 3).requires_grad_(False), "has no parameters to train"),
        (nn.Linear(5, 3), r"does not take rows of shape \(4,\)"),
        (nn.Flatten(), "has no parameters"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"6 rows|3 rows gave shape \(9,\)"),
    ],
)
def test_modules_that_cannot_be_trained_are_named(module, message):
    with pytest.raises(ModelError, match=message):
        check_block(Block(module), ROWS, torch.float32, "silo a's block")


def test_recurrent_dropout_is_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.rnn(x.unflatten(1, (2, 2)))[0][:, -1]

    with pytest.raises(ModelError, match=r"layer rnn is LSTM with dropout 0.5"):
        check_block(Block(Model()), ROWS, torch.float32, "silo a's block")


def test_modules_that_insist_on_single_precision():
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x.float())

    codes = torch.arange(12).reshape(4, 3) % 9
    assert check_block(Block(Codes()), codes, torch.float32, "silo a's block") == 2
    with pytest.raises(ModelError, match=r"rows of shape \(3,\) \(whole numbers; x.float\(\)"):
        check_block(Block(nn.Linear(3, 2)), codes, torch.float32, "silo a's block")


def test_recurrent_cells_are_run_one_by_one():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(4, 3)

        def forward(self, x):
            return self.cell(x)[0]

    block = Block(Cell())
    assert block.loop_only
    assert check_block(block, ROWS, torch.float64, "silo a's block") == 3


def test_frozen_parameters_stay_and_are_not_sent():
    make = mlp(4, [5], 1)
    module = make()
    module[0].requires_grad_(False)
    rows = partition({"a": torch.randn(10, 4)}, torch.ones(10), {"a": 2})
    run = Run(TDCD(batch=5), Task({"a": module}, "squared"), rows).fit(3)
    assert torch.equal(run.export("a")[0].weight, module[0].weight)
    assert not torch.equal(run.export("a")[2].weight, module[2].weight)
    sent = next(entry.bytes for entry in run.ledger if entry.kind == "model")
    assert sent == 2 * 4 * (5 + 1)


def test_equal_blocks_are_checked_once(monkeypatch):
    from fedloom.models import task as module

    seen = []
    real = module.check_block
    monkeypatch.setattr(module, "check_block", lambda *args: seen.append(args) or real(*args))
    rows = partition({s: torch.randn(6, 2) for s in "abc"}, torch.ones(6), dict.fromkeys("abc", 1))
    Run(TDCD(batch=5), Task({s: linear(2) for s in "abc"}, "squared"), rows)
    assert len(seen) == 1


def test_drawing_weights_leaves_the_users_generator_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    Block(linear(3)).initial(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_layers_are_allowed():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2)).eval()
    assert check_block(Block(module), ROWS, torch.float32, "silo a's block") == 3


MODELS = {
    "linear": (linear(4, 2), (4,)),
    "mlp": (mlp(4, [5, 3], 2), (4,)),
    "cnn": (cnn(1, (8, 6), outputs=2, width=3), (1, 8, 6)),
    "resnet18": (resnet18(3, 2, width=8), (3, 16, 16)),
    "lstm": (lstm(3, 4, 2), (5, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_models_in_both_engines(name):
    """Every model, unequal clients, one without rows: stacked equals reference."""
    make, shape = MODELS[name]
    draw = torch.Generator().manual_seed(1)
    x = {silo: torch.randn(20, *shape, generator=draw, dtype=torch.float64) for silo in "ab"}
    rows = partition(x, torch.arange(20) % 2, {"a": [2, 1, 0], "b": 2}, seed=1)
    algorithm = TDCD(local_steps=2, lr=0.1, batch=8)
    runs = [
        Run(algorithm, Task(dict.fromkeys("ab", make), "cross-entropy"), rows, **options).fit(2)
        for options in (
            {"precision": "float64", "engine": "reference"},
            {"precision": "float64", "chunk": 2},
            {"precision": "float64"},
        )
    ]
    right, *others = (run.algorithm.blocks(run.fed, run.state) for run in runs)
    for other in others:
        assert tree.largest_difference(right, other) < 1e-12


def test_resnet18_is_resnet18():
    model = resnet18(3, 10)()
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == 11_173_962  # that of the usual CIFAR ResNet18 (norms have as many)
    assert model(torch.zeros(2, 3, 32, 16)).shape == (2, 10)


def test_the_icassp_cnn_gives_256():
    assert cnn(1, (28, 14))()(torch.zeros(2, 1, 28, 14)).shape == (2, 256)


@pytest.mark.parametrize(
    "make",
    [lambda: linear(0), lambda: mlp(2, [0], 1), lambda: cnn(1, (3, 9)), lambda: lstm(1, 0)],
)
def test_sizes_must_be_positive(make):
    with pytest.raises(SettingError, match="must be at least"):
        make()


def test_a_given_module_is_where_training_starts_and_is_left_alone():
    module = nn.Linear(4, 1)
    before = module.weight.detach().clone()
    x = {"a": torch.randn(10, 4)}
    rows = partition(x, torch.ones(10), {"a": 2})
    run = Run(TDCD(batch=5), Task({"a": module}, "squared"), rows)
    assert torch.equal(run.fed.parts.value["a"].initial(run.fed.streams).block["weight"], before)
    run.fit(1)
    assert torch.equal(module.weight, before)
    assert not torch.equal(run.export("a").weight, before)


def test_initial_weights_come_from_the_seed():
    rows = partition({"a": torch.randn(10, 4)}, torch.ones(10), {"a": 2})
    learn = Task({"a": linear(4)}, "squared")

    def weights(seed):
        run = Run(TDCD(batch=5), learn, rows, seed=seed)
        return run.fed.parts.value["a"].initial(run.fed.streams).block["weight"]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


class Direction(nn.Module):
    """x / |x|, then a linear layer: its gradient at a row of zeros is not a number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        x = x * self.scale
        return self.linear(x / x.norm(dim=1, keepdim=True))


class Standardised(nn.Module):
    """Not a number for a row of equal values, such as one that stands in where there is none."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


def test_a_client_without_rows_is_no_trouble_to_any_model():
    x = {"a": torch.randn(12, 4)}
    rows = partition(x, torch.arange(12) % 2, {"a": [1, 1, 0]})
    scores = [
        Run(TDCD(batch=6), Task({"a": Standardised}, "cross-entropy"), rows, engine=engine)
        .fit(3)
        .predict()
        for engine in ("stacked", "reference")
    ]
    assert torch.allclose(*scores, atol=1e-5)


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_padding_is_never_zeros(engine):
    """Ragged clients, one without rows, fresh minibatches: padding everywhere, and no NaN."""
    x = {silo: torch.randn(20, 4) for silo in "ab"}
    rows = partition(x, torch.arange(20) % 2, {"a": [3, 1, 0], "b": [1, 5]}, seed=2)
    algorithm = TDCD(local_steps=3, lr=0.1, batch=4, minibatch="fresh")
    run = Run(algorithm, Task(dict.fromkeys("ab", Direction), "cross-entropy"), rows, engine=engine)
    run.fit(6)
    assert torch.isfinite(run.predict()).all()
