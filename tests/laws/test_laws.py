"""Laws: what must hold for any placement, any minibatch, any schedule."""

import json

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import Drawn, Placement, Shard, Task, linear, partition
from fedloom.core.rng import Streams
from fedloom.data.partition.arrays import contiguous, cut_rows
from fedloom.engines.party.reference import reference
from fedloom.engines.stacked.engine import StackedEngine
from fedloom.fabric.kinds import Kind
from fedloom.fabric.ledger import Ledger
from fedloom.fabric.schedule import Everyone, Moment, Recorded, Turn

settings.register_profile("fedloom", deadline=None, max_examples=40)
settings.load_profile("fedloom")

shares = st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any)
seeds = st.integers(0, 2**32)


@st.composite
def placements(draw):
    """1-3 silos with 1-5 clients each (some perhaps without rows), 1-20 rows."""
    size = draw(st.integers(1, 20))
    silos = [f"s{j}" for j in range(draw(st.integers(1, 3)))]
    x = {silo: torch.arange(size * 2.0).reshape(size, 2) + 100 * j for j, silo in enumerate(silos)}
    ids = draw(st.permutations(range(1000, 1000 + size)))
    clients = {silo: draw(shares) for silo in silos}
    return partition(
        x,
        torch.arange(size) / 1.0,
        clients,
        ids=ids,
        seed=draw(seeds),
        mirrored=draw(st.booleans()) and len(set(map(str, clients.values()))) == 1,
    )


@given(placements())
def test_shards_are_disjoint_and_cover(rows):
    for held in rows.shards().values():
        ids = np.concatenate([shard.ids for shard in held.values()])
        assert len(ids) == len(set(ids.tolist())) == rows.size
        assert set(ids.tolist()) == set(rows.ids.tolist())


@given(placements())
def test_placing_shards_again_is_the_same_placement(rows):
    again = Placement.of(rows.shards())
    assert np.array_equal(again.ids, rows.ids)
    for silo in rows.topology.silos:
        assert torch.equal(again.owner[silo], rows.owner[silo])
        assert torch.equal(again.x[silo], rows.x[silo])
        assert torch.equal(again.y[silo], rows.y[silo])


@given(placements(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_client_lists_its_rows_is_no_matter(rows, random):
    shards = {}
    for silo, held in rows.shards().items():
        shards[silo] = {}
        for name, shard in held.items():
            order = list(range(len(shard.ids)))
            random.shuffle(order)
            shards[silo][name] = Shard(shard.ids[order], shard.x[order], shard.y[order])
    again = Placement.of(shards)
    assert all(torch.equal(again.x[silo], rows.x[silo]) for silo in rows.topology.silos)


@given(placements())
def test_views_tell_each_party_its_own_and_no_more(rows):
    for party in rows.topology.parties:
        view = rows.view([party])
        if isinstance(party, str):
            assert view.x == {}
            assert {client.silo for client in view.rows} == {party}
            covered = torch.cat(list(view.rows.values())).sort().values
            assert torch.equal(covered, torch.arange(rows.size))
        else:
            assert set(view.rows) == set(view.x) == {party}
            own_rows = rows.shards()[party.silo][party.name]
            assert np.array_equal(rows.ids[view.rows[party].numpy()], own_rows.ids)
            assert torch.equal(view.x[party], own_rows.x)


@given(st.integers(1, 60), st.integers(1, 60))
def test_columns_are_cut_contiguously(columns, silos):
    if silos <= columns:
        cuts = contiguous(columns, silos)
        assert [c for cut in cuts for c in cut] == list(range(columns))
        widths = [len(cut) for cut in cuts]
        assert max(widths) - min(widths) <= 1
        assert widths == sorted(widths, reverse=True)


@given(st.integers(0, 50), shares, seeds)
def test_rows_are_cut_in_proportion(size, shares, seed):
    order = Streams(seed).common("order").permutation(size)
    blocks = cut_rows(size, shares, order)
    assert np.array_equal(np.concatenate(blocks), order)
    for block, share in zip(blocks, shares, strict=True):
        assert abs(len(block) - size * share / sum(shares)) <= 1
        assert share or not len(block)


ROWS = Kind("rows", "a client's rows", "features")
BACK = Kind("back", "the same rows", "features")


def engines(rows, schedule):
    task = Task({silo: linear(2) for silo in rows.topology.silos}, "squared")
    shapes = task.shapes(rows, torch.float64)
    options = {"seed": 0, "schedule": schedule}
    yield reference(task, shapes, rows, device="cpu", **options)
    for chunk in (1, 2, None):
        yield StackedEngine(task, shapes, rows, chunk=chunk, **options)


def features(batch):
    return batch.x


@st.composite
def minibatches(draw):
    rows = draw(placements())
    count = draw(st.just(rows.size) | st.integers(1, rows.size))
    drawn = [
        draw(st.permutations(range(rows.size)))[:count] for _ in range(draw(st.integers(1, 3)))
    ]
    ids = torch.tensor(drawn)
    return rows, ids if draw(st.booleans()) else ids[0]


@settings(max_examples=25)
@given(minibatches(), st.just(Everyone()) | st.builds(Drawn, st.sampled_from([0.5, 0.2]), seeds))
def test_gather_is_the_minibatch_and_scatter_after_it_the_identity(drawn, schedule):
    """In every engine: gathered rows are the minibatch, except those of absent clients; scattered
    again, each client has its own."""
    rows, ids = drawn
    results = []
    for fed in engines(rows, schedule):
        fed.begin(0)
        batch_k, where = fed.minibatch(ids)
        got = fed.gather(ROWS, fed.at_clients(features, batch_k), where)
        back_k = fed.scatter(BACK, got, where)
        hubs, own, back = fed.read(got), fed.read(batch_k), fed.read(back_k)
        for silo, (value, mask) in hubs.items():
            flat = ids.flatten()
            assert torch.equal(value[mask], rows.x[silo].double()[flat[mask]])
            assert not value[~mask].any()
            there = schedule.answers(Moment(0), silo, rows.topology.clients[silo])
            owners = rows.owner[silo][flat]
            assert torch.equal(mask, torch.from_numpy(there)[owners])
        for client, own_rows in back.items():
            assert torch.equal(own_rows.value[own_rows.mask], own[client].x[own[client].mask])
        results.append((hubs, fed.record, list(fed.ledger)))
    first, *others = results
    for hubs, record, ledger in others:
        assert record == first[1]
        assert ledger == first[2]
        for silo, (value, mask) in hubs.items():
            assert torch.equal(value, first[0][silo][0])
            assert torch.equal(mask, first[0][silo][1])


@given(st.integers(1, 400), st.data(), seeds)
def test_a_sample_has_different_numbers_in_range(size, data, seed):
    count = data.draw(st.integers(0, size))
    sample = Streams(seed).common("sample").sample(size, count)
    assert len(sample) == len(set(sample.tolist())) == count
    assert count == 0 or (sample.min() >= 0 and sample.max() < size)
    assert np.array_equal(sample, Streams(seed).common("sample").sample(size, count))


@given(st.floats(0, 1), seeds, st.lists(st.text(max_size=4), min_size=1, max_size=6, unique=True))
def test_presence_of_one_does_not_depend_on_who_else_is_asked_about(presence, seed, names):
    drawn = Drawn(presence, seed)
    together = drawn.answers(Moment(3), "a", names)
    alone = [drawn.answers(Moment(3), "a", [name])[0] for name in names]
    assert together.tolist() == alone


@given(st.integers(0, 2**32))
def test_presence_is_drawn_anew_for_every_round_silo_and_client(seed):
    drawn = Drawn(0.5, seed)
    names = [f"c{k}" for k in range(8)]
    found = {(r, j): drawn.answers(Moment(r), j, names) for r in range(8) for j in ("a", "b")}
    assert len({tuple(there.tolist()) for there in found.values()}) > 8
    share = np.mean(list(found.values()))
    assert 0.2 < share < 0.8
    assert all(found[0, "a"][k] == drawn.answers(Moment(0), "a", names)[k] for k in range(8))


answered = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["start", "model", "update"]),
        st.integers(0, 2),
        st.sampled_from("ab"),
        st.lists(st.booleans(), min_size=3, max_size=3),
    )
)


@given(answered)
def test_a_record_survives_being_written_and_read(notes):
    record = Recorded(rounds=5)
    for round, kind, occurrence, silo, there in notes:
        before = np.ones(3, dtype=bool)
        record.note(Moment(round, kind, occurrence), silo, "xyz", before, np.array(there))
    again = Recorded.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record
    for round, kind, occurrence, silo, _ in notes:
        moment = Moment(round, kind, occurrence)
        assert np.array_equal(
            again.answers(moment, silo, "xyz"), record.answers(moment, silo, "xyz")
        )


bookings = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["top", "bottom"]),
        st.sampled_from(["up", "down"]),
        st.sampled_from([ROWS, BACK]),
        st.integers(0, 5),
        st.integers(0, 100),
    )
)


@given(bookings, bookings)
def test_ledgers_add_up(first, second):
    ledgers = []
    for entries in (first, second, first + second):
        ledger = Ledger()
        for round in range(4):
            ledger.begin(round)
            for when, *booking in entries:
                if when == round:
                    ledger.book(*booking)
            ledger.end()
        ledgers.append(ledger)
    a, b, both = ledgers
    assert list(Ledger.merged([a, b])) == list(both)
    assert both.total() == both.total("top") + both.total("bottom")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.booleans())
def test_a_round_that_begins_again_forgets_what_came_after(rounds, saved):
    """Also where it was read from a file in between."""
    ledger, record, wanted = Ledger(), Recorded(), {}
    for number, round in enumerate(rounds, 1):
        wanted = {known: count for known, count in wanted.items() if known < round}
        ledger.begin(round)
        record.begin(round)
        for known in wanted:
            assert ledger.of_round(known)
        ledger.book("top", "up", ROWS, number, 1)
        moment = Moment(round, "update", number)  # another one in every try
        record.note(moment, "a", "x", np.array([True]), np.array([False]))
        record.visited(round, 0, Turn((str(number),)))
        ledger.end()
        wanted[round] = number
        if saved:
            ledger = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
            record = Recorded.from_json(json.loads(json.dumps(record.to_json())))
    assert {entry.round: entry.messages for entry in ledger} == wanted
    assert set(record.dropped) == {Moment(round, "update", n) for round, n in wanted.items()}
    assert record.visits == {round: [Turn((str(n),))] for round, n in wanted.items()}
    assert record.rounds == max(wanted) + 1
