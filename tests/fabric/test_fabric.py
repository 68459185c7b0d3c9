"""The fabric: placement errors, moves, the ledger, absence."""

import functools

import numpy as np
import pytest
import torch

from fedloom import TDCD, Central, Run, Task, linear, partition
from fedloom.core.errors import (
    LocalError,
    NotFiniteError,
    PlacementError,
    ProtocolError,
    SettingError,
)
from fedloom.core.placed import Rows
from fedloom.core.topology import SERVER, Client
from fedloom.data.placement import Placement
from fedloom.engines.party.engine import PartyEngine
from fedloom.engines.party.reference import reference
from fedloom.engines.party.timeouts import Waits
from fedloom.engines.stacked.engine import StackedEngine
from fedloom.fabric.kinds import Kind
from fedloom.fabric.schedule import Everyone, Moment, Scripted
from fedloom.testing import placement, task
from fedloom.transports.memory import MemoryTransport

VALUE = Kind("value", "anything")
MORE = Kind("more", "anything else")
EMBEDDING = Kind("embedding", "rows of the block's width", "embedding")

FEATURES = [Kind("features", "raw rows", "features"), Kind("again", "them again", "features")]


def both(schedule=None, rows=None):
    rows = rows or placement()
    learn = task()
    shapes = learn.shapes(rows, torch.float64)
    options = {"seed": 0, "schedule": schedule or Everyone()}
    engines = [
        StackedEngine(learn, shapes, rows, **options),
        StackedEngine(learn, shapes, rows, chunk=1, **options),
        reference(learn, shapes, rows, device="cpu", **options),
    ]
    for fed in engines:
        fed.begin(0)
    return engines


@pytest.fixture(params=[0, 1, 2], ids=["stacked", "loop", "reference"])
def fed(request):
    return both()[request.param]


def number(part):
    return torch.tensor(float(len(part.silo)), dtype=torch.float64)


def twice(value):
    return 2 * value


def add(*values):
    return sum(values)


def rows_of(batch):
    return batch.x


def count(batch):
    return batch.mask.sum().double()


class TestPlaces:
    def test_a_hub_value_is_not_at_the_clients(self, fed):
        v = fed.at_hubs(number, fed.part)
        with pytest.raises(PlacementError, match=r"twice at .* lives at hub ash.*to_clients"):
            fed.at_clients(twice, v)

    def test_a_client_value_is_not_at_the_hubs(self, fed):
        v = fed.at_clients(number, fed.part)
        with pytest.raises(PlacementError, match=r"twice at hub ash .*at the clients.*gather"):
            fed.at_hubs(twice, v)

    def test_one_hubs_value_is_not_at_another(self, fed):
        v = fed.at("birch", number, fed.part)
        with pytest.raises(PlacementError, match=r"twice at hub ash .* lives at hub birch"):
            fed.at("ash", twice, v)

    def test_one_silos_value_is_not_in_another(self, fed):
        v = fed.within("birch").at_clients(number, fed.part)
        bad = fed.within("ash")
        with pytest.raises(PlacementError, match="lives elsewhere"):
            bad.read(bad.at_clients(twice, v))

    def test_plain_values_have_no_place(self, fed):
        with pytest.raises(PlacementError, match=r"Tensor, which has no place: use fed.known"):
            fed.at_hubs(twice, torch.ones(1))
        with pytest.raises(PlacementError, match=r"int, which has no place"):
            fed.at_clients(twice, 3)
        assert fed.read(fed.at("ash", twice, fed.known(3))) == {"ash": 6}

    def test_nothing_is_smuggled_in_a_closure(self, fed):
        secret = torch.ones(1)
        for smuggler in (
            lambda part: secret,
            functools.partial(torch.add, secret),
            lambda part, inside=secret: inside,
        ):
            with pytest.raises(PlacementError, match="carries a value of the run inside it"):
                fed.at_clients(smuggler, fed.part)

    def test_there_is_no_looking_inside(self, fed):
        v = fed.at_hubs(number, fed.part)
        for read in (bool, iter, len, float, lambda v: v + 1, lambda v: v[0], lambda v: v == 1):
            with pytest.raises(PlacementError, match="cannot read a placed value"):
                read(v)

    def test_an_unknown_silo(self, fed):
        with pytest.raises(PlacementError, match="there is no silo oak"):
            fed.within("oak")

    def test_a_party_alone_cannot_read_what_it_does_not_host(self):
        rows, learn = placement(), task()
        alone = PartyEngine(
            learn,
            learn.shapes(rows, torch.float64),
            rows.view(["ash"]),
            hosted=["ash"],
            transport=MemoryTransport(rows.topology.parties),
            seed=0,
            schedule=Everyone(),
        )
        alone.begin(0)
        v = alone.at_hubs(number, alone.part)
        assert set(alone.read(v)) == {"ash"}
        with pytest.raises(PlacementError, match=r"at hub birch .*not hosted here"):
            v.get("birch", "a test")


class TestMoves:
    def test_down_and_up(self, fed):
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        zero = fed.at_hubs(number, fed.part)
        got = fed.read(fed.mean(MORE, fed.at_clients(twice, v_k), otherwise=zero))
        assert {silo: float(v) for silo, v in got.items()} == {"ash": 6, "birch": 10, "cedar": 10}

    def test_weights(self, fed):
        batch_k, _ = fed.minibatch(torch.arange(36))
        zero = fed.at_hubs(number, fed.part)
        n_k = fed.at_clients(count, batch_k)
        got = fed.read(fed.mean(VALUE, n_k, otherwise=zero, weight=n_k))
        for silo, value in got.items():
            rows = np.bincount(placement().owner[silo].numpy())
            assert float(value) == pytest.approx((rows**2).sum() / rows.sum())

    def test_no_weight_at_all(self, fed):
        zero = fed.at_hubs(number, fed.part)
        v_k = fed.to_clients(VALUE, zero)
        w_k = fed.at_clients(add, fed.known(torch.tensor(0.0, dtype=torch.float64)))
        got = fed.read(fed.mean(MORE, fed.at_clients(twice, v_k), otherwise=zero, weight=w_k))
        assert float(got["ash"]) == 3

    def test_exchange_is_in_hub_order_and_includes_oneself(self, fed):
        got = fed.read(fed.exchange(VALUE, fed.at_hubs(number, fed.part)))
        for values in got.values():
            assert list(values) == ["ash", "birch", "cedar"]
            assert [float(v) for v in values.values()] == [3, 5, 5]

    def test_collect_and_spread_between_hubs(self, fed):
        at_birch = fed.collect(VALUE, fed.at_hubs(number, fed.part), to="birch")
        assert set(fed.read(at_birch)) == {"birch"}
        back = fed.read(fed.spread(MORE, at_birch, frm="birch"))
        assert {silo: float(v) for silo, v in back.items()} == {"ash": 3, "birch": 5, "cedar": 5}

    def test_collect_and_spread_inside_a_silo(self, fed):
        batch_k, _ = fed.minibatch(torch.arange(36))
        at_hub = fed.collect(VALUE, fed.at_clients(count, batch_k))
        got = fed.read(at_hub)
        assert list(got["ash"]) == ["0", "1", "2", "3"]
        assert sum(float(v) for v in got["ash"].values()) == 36
        back = fed.read(fed.spread(MORE, at_hub))
        assert back[Client("ash", "3")] == got["ash"]["3"]

    def test_personal_values_of_different_shapes(self, fed):
        """Clients with different shapes never share a chunk."""
        widths = fed.at_hubs(different_widths, fed.part)
        got_k = fed.at_clients(twice, fed.spread(VALUE, widths))
        got = fed.read(fed.collect(MORE, got_k))
        assert [len(v) for v in got["ash"].values()] == [1, 2, 1, 2]
        assert all(bool((v == 2).all()) for v in got["ash"].values())

    def test_rows_come_back_in_place(self, fed):
        ids = torch.tensor([5, 30, 0, 7])
        batch_k, where = fed.minibatch(ids)
        got = fed.read(fed.gather(FEATURES[0], fed.at_clients(rows_of, batch_k), where))
        for silo, (value, mask) in got.items():
            assert bool(mask.all())
            assert torch.equal(value, placement().x[silo][ids])

    def test_a_value_without_rows_cannot_be_gathered(self, fed):
        batch_k, where = fed.minibatch(torch.arange(36))
        with pytest.raises(ProtocolError, match="features: one entry for each of a client's rows"):
            fed.gather(FEATURES[0], fed.at_clients(count, batch_k), where)

    def test_rows_of_another_width_are_refused(self, fed):
        batch_k, where = fed.minibatch(torch.arange(36))
        with pytest.raises(ProtocolError, match=r"embedding from .* rows of shape \(4,\).*agreed"):
            fed.gather(EMBEDDING, fed.at_clients(rows_of, batch_k), where)

    def test_rows_must_be_declared(self, fed):
        batch_k, where = fed.minibatch(torch.arange(36))
        with pytest.raises(ProtocolError, match="value carries rows, but does not declare them"):
            fed.gather(VALUE, fed.at_clients(rows_of, batch_k), where)

    def test_a_mean_must_have_the_shape_of_the_hubs_value(self, fed):
        zero = fed.at_hubs(pair, fed.part)
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        with pytest.raises(ProtocolError, match=r"more from .* shape of the hub's own value"):
            fed.mean(MORE, v_k, otherwise=zero)

    def test_bad_moves_are_refused_alike(self, fed):
        hub = fed.at_hubs(number, fed.part)
        at_k = fed.at_clients(number, fed.part)
        for move, message in (
            (lambda: fed.to_clients(VALUE, at_k), "value at hub ash .*lives at the clients"),
            (lambda: fed.exchange(VALUE, at_k), "value at hub ash .*lives at the clients"),
            (lambda: fed.keep(hub, hub), "keep at the clients .*lives at hub ash"),
            (lambda: fed.read(fed.known(1)), "read was given Known"),
            (lambda: fed.collect(VALUE, hub, to="oak"), "there is no hub oak"),
            (lambda: fed.collect(VALUE, hub, to=SERVER), "there is no server"),
            (lambda: fed.collect(VALUE, hub), "needs `to`, the party it goes to"),
            (lambda: fed.at("oak", number, fed.part), "there is no hub oak"),
            (lambda: fed.spread(VALUE, hub, frm="oak"), "there is no hub oak"),
        ):
            with pytest.raises(PlacementError, match=message):
                move()

    def test_bad_payloads_are_refused_alike(self, fed):
        _, where = fed.minibatch(torch.arange(36))
        short = fed.at_hubs(few_rows, fed.part)
        lacking = fed.at("birch", lacks_cedar, fed.part)
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        counts = fed.at_hubs(whole_number, fed.part)
        below = fed.at_clients(add, fed.known(torch.tensor(-1.0, dtype=torch.float64)))
        zero = fed.at_hubs(number, fed.part)
        for move, message in (
            (lambda: fed.scatter(FEATURES[0], short, where), "the 36 rows of the minibatch, got 2"),
            (lambda: fed.spread(MORE, lacking, frm="birch"), "hub birch has nothing for hub cedar"),
            (lambda: fed.spread(MORE, fed.at_hubs(nobodys, fed.part)), "nothing for client ash/0"),
            (
                lambda: fed.mean(MORE, fed.to_clients(VALUE, counts), otherwise=counts),
                "real numbers",
            ),
            (
                lambda: fed.mean(MORE, v_k, otherwise=zero, weight=below),
                "ash/0: weight -1",
            ),
        ):
            with pytest.raises(ProtocolError, match=message):
                move()

    def test_local_work_at_clients_gives_tensors(self, fed):
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        with pytest.raises(LocalError, match=r"with_a_number failed at .*: it must return tensors"):
            fed.read(fed.at_clients(with_a_number, v_k))

    def test_local_work_without_arguments(self, fed):
        assert len(fed.read(fed.at_clients(one))) == 9

    def test_a_weight_of_another_precision(self, fed):
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        half = fed.known(torch.tensor(0.5, dtype=torch.float32))
        fed.mean(
            MORE, v_k, otherwise=fed.at_hubs(number, fed.part), weight=fed.at_clients(add, half)
        )
        assert fed.ledger.of_round(0)[("bottom", "up", "more")] == (9, 9 * 16)

    def test_nan_is_told_though_nothing_weighs(self, fed):
        v_k = fed.at_clients(infinite, fed.part)
        nothing = fed.at_clients(add, fed.known(torch.tensor(0.0, dtype=torch.float64)))
        zero = fed.at_hubs(number, fed.part)
        with pytest.raises(NotFiniteError, match="value from client ash/0"):
            fed.mean(VALUE, v_k, otherwise=zero, weight=nothing)

    def test_a_failing_local_function_is_named(self, fed):
        v_k = fed.to_clients(VALUE, fed.at_hubs(number, fed.part))
        with pytest.raises(LocalError, match=r"round 0: broken failed at .*ash.*: no such luck"):
            fed.read(fed.at_clients(broken, v_k))
        with pytest.raises(LocalError, match="round 0: broken failed at hub ash: no such luck"):
            fed.at_hubs(broken, fed.part)

    def test_what_is_not_finite_is_refused_between_hubs(self, fed):
        v = fed.at_hubs(infinite, fed.part)
        with pytest.raises(NotFiniteError, match="round 0: NaN or infinity in value from hub"):
            fed.exchange(VALUE, v)

    def test_within_counts_moves_with_everyone(self, fed):
        fed.exchange(VALUE, fed.at_hubs(number, fed.part))
        fed.within("ash").to_clients(VALUE, fed.at_hubs(number, fed.part))
        assert fed.now.move == 2


def few_rows(part):
    return Rows(torch.zeros(2, 4, dtype=torch.float64), torch.ones(2, dtype=torch.bool))


def lacks_cedar(part):
    return {"ash": torch.ones(1), "birch": torch.ones(1)}


def nobodys(part):
    return {}


def whole_number(part):
    return torch.tensor(3)


def with_a_number(value):
    return value, 3


def one():
    return torch.ones(1)


def different_widths(part):
    return {name: torch.ones(1 + int(name) % 2, dtype=torch.float64) for name in "0123"}


def pair(part):
    return torch.zeros(2, dtype=torch.float64)


def broken(value):
    raise RuntimeError("no such luck")


def infinite(part):
    return torch.tensor(float("inf"), dtype=torch.float64)


class TestAbsence:
    GONE = Scripted(
        {Moment(0): {"ash": ["0"]}, Moment(0, "value"): {"ash": ["1"], "birch": ["0", "1"]}}
    )

    def test_the_roster_only_shrinks(self):
        ledgers = []
        for fed in both(self.GONE):
            zero = fed.at_hubs(number, fed.part)
            v_k = fed.to_clients(MORE, zero)
            assert Client("ash", "0") not in fed.read(v_k)
            fed.mean(VALUE, v_k, otherwise=zero)
            again = fed.read(fed.to_clients(MORE, zero))
            assert {c.name for c in again if c.silo == "ash"} == {"2", "3"}
            assert not [c for c in again if c.silo == "birch"]
            fed.begin(1)
            assert len(fed.read(fed.to_clients(MORE, zero))) == 9  # full again
            ledgers.append(list(fed.ledger))
            assert fed.record.dropped == {
                Moment(0): {"ash": ("0",)},
                Moment(0, "value"): {"ash": ("1",), "birch": ("0", "1")},
            }
        assert ledgers[0] == ledgers[1] == ledgers[2]

    def test_nobody_gives_zeros_and_otherwise(self):
        for fed in both(self.GONE):
            zero = fed.at_hubs(number, fed.part)
            got = fed.read(fed.mean(VALUE, fed.to_clients(MORE, zero), otherwise=zero))
            assert float(got["birch"]) == 5
            batch_k, where = fed.minibatch(torch.arange(36))
            rows = fed.read(fed.gather(FEATURES[0], fed.at_clients(rows_of, batch_k), where))
            assert not rows["birch"].mask.any()
            assert rows["birch"].value.shape == (36, 3)
            owner = placement().owner["ash"]
            assert torch.equal(rows["ash"].mask, (owner == 2) | (owner == 3))

    def test_kept_state(self):
        values = []
        for fed in both(self.GONE):
            old_k = fed.at_clients(number, fed.part)
            zero = fed.at_hubs(number, fed.part)
            new_k = fed.at_clients(twice, old_k)
            with pytest.raises(PlacementError, match="keep needs an upward move"):
                fed.keep(new_k, old_k)
            fed.mean(VALUE, new_k, otherwise=zero)
            values.append({str(c): float(v) for c, v in fed.read(fed.keep(new_k, old_k)).items()})
        assert values[0] == values[1] == values[2]
        assert values[0] == {
            **dict.fromkeys(["ash/0", "ash/1"], 3.0),
            **dict.fromkeys(["ash/2", "ash/3"], 6.0),
            **dict.fromkeys(["birch/0", "birch/1"], 5.0),
            **dict.fromkeys(["cedar/0", "cedar/1", "cedar/2"], 10.0),
        }

    def test_clients_without_rows_can_be_left_out(self):
        for fed in both():
            _, where = fed.minibatch(torch.tensor([3]))
            there = fed.read(fed.to_clients(VALUE, fed.at_hubs(number, fed.part), where))
            assert len(there) == 3  # the one holder in each silo


def test_a_server_can_take_part():
    """Hubs and a server that holds no rows: collect, work, spread, in both engines."""
    shards = placement().shards()
    rows = Placement.of(shards, server=True)
    assert rows.topology.parties[-1] == SERVER
    ledgers = []
    for fed in both(rows=rows):
        at_server = fed.collect(VALUE, fed.at_hubs(number, fed.part), to=SERVER)
        total = fed.at(SERVER, total_for_all, at_server)
        got = fed.read(fed.spread(MORE, total, frm=SERVER))
        assert {silo: float(v) for silo, v in got.items()} == dict.fromkeys(shards, 13.0)
        ledgers.append(list(fed.ledger))
    assert ledgers[0] == ledgers[1] == ledgers[2]
    assert [(e.tier, e.direction, e.messages) for e in ledgers[0]] == [
        ("top", "down", 3),
        ("top", "up", 3),
    ]


def total_for_all(values):
    return dict.fromkeys(values, sum(values.values()))


def test_waits_make_sense():
    with pytest.raises(SettingError, match="0 < up <= patience"):
        Waits(up=5, patience=1)


def test_text_ids_and_whole_number_features():
    """Ids may be text; features may be token numbers for an embedding table."""
    table = torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Flatten())
    words, numbers = torch.arange(24).reshape(8, 3) % 9, torch.randn(8, 2)
    rows = partition(
        {"text": words, "table": numbers},
        torch.arange(8.0),
        {"text": 2, "table": [1, 0]},
        ids=[f"row-{i}" for i in range(8)],
    )
    learn = Task({"text": table, "table": linear(2, 6)}, "squared", head=linear(6))
    for algorithm in (Central(batch=4, lr=0.01), TDCD(batch=4, lr=0.01)):
        a, b = (
            Run(algorithm, learn, rows, engine=engine, precision="float64").fit(2).predict()
            for engine in ("stacked", "reference")
        )
        assert a.shape == (8, 1)
        assert torch.allclose(a, b, atol=1e-12)
