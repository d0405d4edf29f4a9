"""Rows of keys, pulled and handed back on one process, beside torch's autograd through the module's whole table."""

import torch
from torch import nn

from drivetrain import Admit, Amount, Evict, Keyed
from drivetrain.engine.tables.build import RowRates, build_tables, draw_tables, movers_of
from drivetrain.engine.tables.exchange import ask
from drivetrain.engine.tables.keys import KEY, bucket_of, edges_of, key_rows
from drivetrain.engine.tables.module import Embeddings, Ids, Lookup, Table
from drivetrain.engine.tables.recipe import Embeddings as Settings
from drivetrain.optim.recipe.rows import AdagradRows, AdamRows
from drivetrain.optim.recipe.schedules import Constant
from drivetrain.optim.rows import HalfRows
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

LOOKUPS = [Lookup("one", "a"), Lookup("several", "b", "mean"), Lookup("again", "a", "sum")]
BY_BUCKET = [key for key in range(1000) if int(bucket_of(torch.tensor(key))) == 5]


def built(optimizer=AdamRows(lr=0.1), half=None, **keyed):  # noqa: B008 - settings are frozen
    """One matrix of two tables, and the network that reads them."""
    rule = Keyed(**keyed)
    network = nn.Sequential(Embeddings([Table("a", 300, 4, keyed=rule), Table("b", 200, 4, keyed=rule)], LOOKUPS))
    settings = Settings(optimizer=optimizer)
    dtype = torch.float32 if half is None else torch.bfloat16
    tables = build_tables({"model": network}, settings, Group(), 7, dtype)
    draw_tables(tables, 7)
    rates = RowRates(settings, Constant(), Horizon(100, Scale(Batches(10))))
    tables.move_by("model", movers_of(tables, "model", rates, lambda _: half))
    return tables, network[0]


def ids(one, several=((-1, -1),), again=((-1,),)):
    return Ids({"one": torch.tensor(one), "several": torch.tensor(several), "again": torch.tensor(again)})


def step(tables, given, position, seed=0):
    """A step of one micro-batch whose gradient is drawn; by feature the vectors, and what was handed back to them."""
    (work,) = tables.at_work
    plan = work.planner.plan([given])
    work.pulled = work.pull(plan, ask(plan, None))
    found = work.pulled.pooled(plan.micros[0])
    handed = [torch.randn(bags.shape, generator=torch.Generator().manual_seed(seed)) for bags in found]
    sum((bags * back).sum() for bags, back in zip(found, handed, strict=True)).backward()
    work.push(by_lane=False)
    work.mover.advance(position, waits=False)
    return found, handed


def row_of(work, table, key):
    (keyed,) = [own for own in work.tables if own.table.name == table]
    lines = (keyed.rows.lines[:, KEY] == key).nonzero().squeeze(1)
    return keyed.at + int(lines) if len(lines) else None


def test_keys_with_and_without_rows_come_to_what_the_whole_table_does():
    """Some keys share a row: its gradient is the sum of theirs."""
    tables, module = built(admit=Admit(count=2))
    (work,) = tables.at_work
    step(tables, ids([3, 3, 8], [[3, 9], [9, -1], [-1, -1]], [[3], [11], [-1]]), 10)
    work.mover.move()
    given = ids([3, 8, *BY_BUCKET[:3]], [[9, 4], [9, 5], [6, -1], [-1, -1], [7, 9]], [[3], [-1], [77], [8], [8]])
    found, handed = step(tables, given, 20)
    rows, gradient = work.mover.rows, work.mover.gradient
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_()
    wanted = module(given.ids)
    for (name, bags), pulled, back in zip(wanted.items(), found, handed, strict=True):
        assert torch.allclose(bags, pulled, atol=1e-6), name
        (bags * back).sum().backward()
    whole = torch.cat([module.table_a.grad, module.table_b.grad])
    assert len(rows.unique()) == len(rows)
    assert torch.allclose(torch.zeros_like(whole).index_copy(0, rows, gradient), whole, atol=1e-6)
    shared = int(edges_of(300)[5])
    assert shared in rows.tolist()
    assert row_of(work, "a", 3) in rows.tolist()
    assert row_of(work, "a", BY_BUCKET[0]) is None


def test_a_row_begins_by_its_key_and_leaves_nothing_behind():
    tables, _ = built(evict=Evict(age=Amount(samples=15), every=Amount(steps=1)))
    (work,) = tables.at_work
    step(tables, ids([3], [[5, 5]]), 10)
    work.mover.move()
    drawn = key_rows(torch.tensor([3]).numpy(), "a", 300**-0.5, 4, 7)[0]
    first = row_of(work, "a", 3)
    assert torch.equal(work.matrix.weight[first], drawn)
    step(tables, ids([3]), 20)
    work.mover.move()
    slots = work.mover.slots
    assert not torch.equal(work.matrix.weight[first], drawn)
    assert all(bool(slots[name][first].any()) for name in ("exp_avg", "exp_avg_sq"))
    for position in (30, 40):
        step(tables, ids([8]), position)
        work.mover.move()
    assert row_of(work, "a", 3) is None
    assert not any(bool(slots[name][first].any()) for name in slots)
    assert not bool(work.matrix.weight[first].any())
    step(tables, ids([3]), 50)
    work.mover.move()
    assert torch.equal(work.matrix.weight[row_of(work, "a", 3)], drawn)


def test_a_row_that_lost_its_key_has_no_master_of_another_number():
    half = HalfRows(lasting=True, seed=7, by_chance=None)
    evict = Evict(age=Amount(samples=15), every=Amount(steps=1))
    tables, _ = built(AdagradRows(lr=0.1, initial=0.5), half, evict=evict)
    (work,) = tables.at_work
    for key, position in ((3, 10), (3, 20), (8, 30), (8, 40)):
        step(tables, ids([key]), position)
        work.mover.move()
    assert row_of(work, "a", 3) is None
    assert torch.equal(work.mover.slots["master"].bfloat16(), work.matrix.weight)


def test_a_step_that_does_not_move_counts_nothing():
    tables, _ = built()
    (work,) = tables.at_work
    step(tables, ids([3]), 10)
    work.mover.drop()
    step(tables, ids([8]), 20)
    work.mover.move()
    assert row_of(work, "a", 3) is None
    assert row_of(work, "a", 8) is not None


def test_a_key_that_a_step_lets_in_is_found_by_the_next_though_that_was_told_before():
    tables, _ = built()
    (work,) = tables.at_work
    plan = work.planner.plan([ids([3])])
    told = ask(plan, None)
    step(tables, ids([3]), 10)
    work.mover.move()
    pulled = work.pull(plan, told)
    assert pulled.addresses.tolist() == [row_of(work, "a", 3)]


def test_a_graph_of_the_module_finds_what_the_module_does():
    """Also of keys that have no row, and of places without a key."""
    tables, module = built()
    (work,) = tables.at_work
    step(tables, ids([3, 1 << 62], [[9, 4], [8, -1]], [[3], [11]]), 10)
    work.mover.move()
    given = ids([3, 1 << 62, 77], [[9, 5], [-1, 8], [-1, -1]], [[11], [-1], [78]]).ids
    graph = torch.export.export(module.eval(), (given,)).module()
    for name, bags in module(given).items():
        assert torch.equal(graph(given)[name], bags)
