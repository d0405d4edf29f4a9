"""Embeddings as a plain module."""

from itertools import pairwise

import pytest
import torch

from drivetrain.engine.tables.module import BLOCK, Embeddings, Lookup, Table, initial_rows, pooled


@pytest.mark.parametrize("cuts", [[0, 10], [0, 1, 4096, 4097, 9000, 10000], [0, 5000, 10000]])
def test_initial_rows_are_the_same_however_a_table_is_cut(cuts):
    table = Table("ids", cuts[-1], 3)
    whole = initial_rows(table, 7, 0, table.rows)
    parts = [initial_rows(table, 7, start, stop) for start, stop in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    assert whole.abs().max() <= table.rows**-0.5
    assert not torch.equal(initial_rows(Table("others", table.rows, 3), 7, 0, table.rows), whole)
    if table.rows > BLOCK:
        assert not torch.equal(whole[:4], whole[BLOCK : BLOCK + 4])


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ids_that_are_not_there_count_for_nothing(pooling, weighted):
    table = torch.arange(12.0).view(4, 3)
    ids = torch.tensor([[1, 3, -1], [-1, -1, -1]])
    weights = torch.tensor([[2.0, 0.5, 9.0], [9.0, 9.0, 9.0]]) if weighted else None
    own = [table[1] * (2.0 if weighted else 1.0), table[3] * (0.5 if weighted else 1.0)]
    found = pooled(table, ids, weights, pooling)
    if pooling == "none":
        wanted = torch.stack([torch.stack([*own, torch.zeros(3)]), torch.zeros(3, 3)])
    else:
        wanted = torch.stack([sum(own) / (2 if pooling == "mean" else 1), torch.zeros(3)])
    assert torch.allclose(found, wanted)


def test_a_table_may_be_called_like_a_method():
    module = Embeddings([Table(name, 3, 2) for name in ("items", "type", "forward")], [Lookup("x", "type")])
    module.draw(0)
    assert module(ids={"x": torch.tensor([2])})["x"].shape == (1, 2)
    assert {name for name, _ in module.named_parameters()} == {"table_items", "table_type", "table_forward"}
