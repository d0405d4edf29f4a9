"""Bags that travel come to the bits of rows that travel, forward and back, on any number of ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.engine.tables.bag_matrix import BagMatrixRows
from drivetrain.engine.tables.exchange import Exchange
from drivetrain.engine.tables.layout import lay_out_rows
from drivetrain.engine.tables.matrix import Matrix, MatrixRows
from drivetrain.engine.tables.module import Ids, Lookup, Table
from drivetrain.optim.recipe.rows import SGDRows
from drivetrain.optim.rows import build_mover
from drivetrain.spec.exits import Exit, Failure

TABLES = (Table("a", 7, 3), Table("b", 5, 3), Table("c", 3, 3))
LOOKUPS = (Lookup("one", "a"), Lookup("sum", "b"), Lookup("mean", "a", "mean"), Lookup("more", "c"))
DEPTH = {"one": 0, "sum": 4, "mean": 2, "more": 0}


class Place:
    """A rank among threads that pass each other what `all_to_all_single` would send."""

    def __init__(self, rank, boxes, barrier):
        self.rank, self.boxes, self.barrier = rank, boxes, barrier

    def send(self, found, given, arriving=None, leaving=None):
        world = len(self.boxes)
        self.boxes[self.rank] = given.split(leaving or [len(given) // world] * world)
        self.barrier.wait(30)
        parts = [box[self.rank] for box in self.boxes]
        assert [len(part) for part in parts] == (arriving or [len(found) // world] * world)
        found.copy_(torch.cat(parts))
        self.barrier.wait(30)


@pytest.fixture(autouse=True, scope="module")
def passed_by_threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", lambda *tensors, group: group.send(*tensors))
        yield


def some_ids(samples, seed, *, weighted):
    draw = torch.Generator().manual_seed(seed)
    rows = {table.name: table.rows for table in TABLES}
    ids = {}
    for name, table in [(lookup.feature, lookup.table) for lookup in LOOKUPS]:
        shape = (samples, DEPTH[name]) if DEPTH[name] else (samples,)
        ids[name] = torch.randint(-1 if DEPTH[name] else 0, rows[table], shape, generator=draw)
    return Ids(ids, {"sum": torch.rand(samples, 4, generator=draw)} if weighted else {})


def work_of(kind, layout, place):
    weight = torch.rand(layout.filled[place.rank], 3, generator=torch.Generator().manual_seed(place.rank))
    matrix = Matrix("model", "", layout, tuple(layout.of(place.rank)), weight, LOOKUPS, SGDRows(), None)
    work = BagMatrixRows(matrix, place) if kind == "bags" else MatrixRows(matrix, Exchange(weight, place))
    work.mover = build_mover(SGDRows(), weight, lambda position: 1.0)
    return work


def step(kind, layout, place, micros, losses):
    """What the bags of each micro-batch come to, by feature, and what the owner hands the mover."""
    work, found = work_of(kind, layout, place), []
    plan = work.planner.plan(micros)
    work.pulled = work.pull(plan, work.ask(plan, place), losses)
    for micro in plan.micros:
        names = [lookup.feature for lookup in work.matrix.lookups]
        by_feature = dict(zip(names, work.pulled.pooled(micro), strict=True))
        found.append({name: bags.detach() for name, bags in by_feature.items()})
        for loss in range(losses):
            parts = []
            for name, bags in sorted(by_feature.items()):
                draw = torch.Generator().manual_seed(len(name) + 10 * loss + 100 * place.rank + len(bags))
                parts.append((bags * torch.randn(bags.shape, generator=draw)).sum())
            sum(parts).backward(retain_graph=True)
            if losses > 1:
                work.pulled.keep(loss)
    work.push(by_lane=False)
    return found, work.mover.rows, work.mover.gradient


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=2, max_size=4), st.integers(0, 99), st.integers(1, 2))
def test_bags_that_travel_come_to_the_bits_of_rows_that_travel(samples, seed, losses):
    world, found = len(samples), {}
    layout = lay_out_rows(TABLES, ["table"] * 3, [0] * world)
    for kind in ("bags", "rows"):
        boxes, barrier = [None] * world, threading.Barrier(world)

        def rank(number, kind=kind, boxes=boxes, barrier=barrier):
            draws = [seed + 10 * number + place for place in range(len(samples[number]))]
            asked = zip(samples[number], draws, strict=True)
            micros = [some_ids(size, draw, weighted=draw % 3 == 0) for size, draw in asked]
            return step(kind, layout, Place(number, boxes, barrier), micros, losses)

        with ThreadPoolExecutor(world) as threads:
            found[kind] = list(threads.map(rank, range(world)))
    for own, wanted in zip(found["bags"], found["rows"], strict=True):
        for bags, rows in zip(own[0], wanted[0], strict=True):
            assert all(torch.equal(bags[name], rows[name]) for name in DEPTH)
        assert torch.equal(own[1], wanted[1])
        assert torch.equal(own[2], wanted[2])


def test_an_id_that_is_no_row_is_told_with_its_feature():
    layout = lay_out_rows(TABLES, ["table"] * 3, [0, 0])
    work, ids = work_of("bags", layout, Place(0, [None] * 2, None)), some_ids(3, 0, weighted=False)
    ids.ids["more"][1] = 3
    with pytest.raises(Failure, match="'more': id 3 is no row of table 'c', which has 0 to 2") as caught:
        work.planner.plan([ids])
    assert caught.value.outcome.code is Exit.BAD_DATA


def test_a_pass_without_weight_finds_numbers_in_the_shapes_of_bags():
    layout = lay_out_rows(TABLES, ["table"] * 3, [0, 0])
    work = work_of("bags", layout, Place(0, [None] * 2, None))
    pulled, micro = work.stand_in(some_ids(3, 0, weighted=False))
    assert [bags.shape for bags in pulled.pooled(micro)] == [(3, 3)] * 4
