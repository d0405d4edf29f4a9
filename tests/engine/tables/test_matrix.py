"""Rows of a step, pulled and handed back on one process, beside torch's autograd through whole tables."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.engine.tables.exchange import Exchange, ask
from drivetrain.engine.tables.layout import lay_out_rows
from drivetrain.engine.tables.matrix import Matrix, MatrixRows
from drivetrain.engine.tables.module import Ids, Lookup, Table, pooled
from drivetrain.engine.tables.row_plan import RowPlanner
from drivetrain.optim.recipe.rows import SGDRows
from drivetrain.spec.exits import Exit, Failure

TABLES = (Table("a", 7, 3), Table("b", 5, 3))
LOOKUPS = (Lookup("one", "a"), Lookup("sum", "b"), Lookup("mean", "a", "mean"), Lookup("each", "b", "none"))


def rows_at_work(seed=0):
    layout = lay_out_rows(TABLES, ["auto", "auto"], [0])
    weight = torch.rand(layout.filled[0], 3, generator=torch.Generator().manual_seed(seed))
    matrix = Matrix("model", "", layout, tuple(layout.of(0)), weight, LOOKUPS, SGDRows(), None)
    return MatrixRows(matrix, Exchange(weight, None))


def pull(work, micros):
    plan = work.planner.plan(micros)
    return work.pull(plan, ask(plan, None))


def some_ids(samples, seed, *, weighted):
    draw = torch.Generator().manual_seed(seed)
    ids = {"one": torch.randint(7, (samples,), generator=draw)}
    for name, rows in (("sum", 5), ("mean", 7), ("each", 5)):
        ids[name] = torch.randint(-1, rows, (samples, 4), generator=draw)
    weights = {"sum": torch.rand(samples, 4, generator=draw)} if weighted else {}
    return Ids(ids, weights)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
def test_micro_batches_come_to_what_whole_tables_do(sizes, seed, weighted):
    work = rows_at_work()
    micros = [some_ids(size, seed + place, weighted=weighted) for place, size in enumerate(sizes)]
    work.pulled = pull(work, micros)
    tables = {t.name: work.matrix.of(t.name, work.matrix.weight).clone().requires_grad_() for t in TABLES}
    for place, given_ids in enumerate(micros):
        found = work.pulled.pooled(work.pulled.plan.micros[place])
        for lookup, bags in zip(LOOKUPS, found, strict=True):
            wanted = pooled(
                tables[lookup.table],
                given_ids.ids[lookup.feature],
                given_ids.weights.get(lookup.feature),
                lookup.pooling,
            )
            assert torch.allclose(bags.view(wanted.shape), wanted, atol=1e-6)
            factor = torch.arange(1.0, wanted.numel() + 1).view(wanted.shape)
            (wanted * factor).sum().backward()
        sum((bags * torch.arange(1.0, bags.numel() + 1).view_as(bags)).sum() for bags in found).backward()
    gradient = torch.zeros_like(work.matrix.weight)
    gradient[work.pulled.plan.local] = work.pulled.take_gradient()
    for table in TABLES:
        own = tables[table.name].grad
        wanted = torch.zeros(table.rows, 3) if own is None else own
        assert torch.allclose(work.matrix.of(table.name, gradient), wanted, rtol=1e-4, atol=1e-4)


def test_a_rank_without_samples_asks_for_nothing():
    work = rows_at_work()
    work.pulled = pull(work, [])
    assert work.pulled.take_gradient().shape == (0, 3)


@pytest.mark.parametrize(("feature", "wrong"), [("one", 7), ("one", -1), ("sum", 5), ("sum", -2)])
def test_an_id_that_is_no_row_is_told_with_its_feature(feature, wrong):
    ids = some_ids(3, 0, weighted=False)
    ids.ids[feature].view(-1)[1] = wrong
    with pytest.raises(Failure, match=f"'{feature}': id {wrong} is no row") as caught:
        RowPlanner(lay_out_rows(TABLES, ["auto", "auto"], [0]), LOOKUPS).plan([ids])
    assert caught.value.outcome.code is Exit.BAD_DATA
