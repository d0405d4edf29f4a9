"""Tables as commits have them: which rows are here, and their optimizers' state."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor

from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.masters import MASTERS
from drivetrain.optim.rows import MASTER
from drivetrain.spec.box import Box

ROWS = "rows"
"""What the names of rows' optimizer state in commits begin with."""


def row_boxes(tables: Tables) -> dict[str, Box]:
    """Which rows are here, and which lines of keys, by NETWORK/NAME of the tables' parameters."""
    found: dict[str, Box] = {}
    for matrix in tables.matrices:
        found |= matrix_boxes(matrix)
    return found


def matrix_boxes(matrix: Matrix) -> dict[str, Box]:
    """The same of one matrix."""
    found = {matrix.path(table.name): matrix.box(table) for table in matrix.layout.tables}
    for keyed in matrix.keyed:
        for kind, box in keyed.boxes.items():
            found[matrix.beside(f"{kind}_{keyed.table.name}")] = box
    return found


def row_claim(tables: Tables) -> list[Mapping[str, Any]]:
    """What bits depend on beside the number of ranks, as JSON data; nothing where that is all."""
    return [work.claim for work in tables.at_work if work.claim]


def row_state(tables: Tables) -> dict[str, Tensor]:
    """The live state of what moves rows, by the names that commits give it: `rows/NETWORK/NAME/SLOT`, and that of
    masters as of layers."""
    found: dict[str, Tensor] = {}
    for work in tables.at_work:
        matrix, mover = work.matrix, work.mover
        if mover is None:  # a network that does not train
            continue
        for table in matrix.layout.tables:
            path = matrix.path(table.name)
            name = f"{ROWS}/{path}"
            for slot, tensor in mover.slots.items():
                found[f"{MASTERS}/{path}" if slot == MASTER else f"{name}/{slot}"] = matrix.of(table.name, tensor)
            found[f"{name}/moves"] = mover.moves
    return found


def row_state_boxes(tables: Tables) -> dict[str, Box]:
    """Where the state that has a line for each row lies in the whole, by the same names."""
    boxes, found = row_boxes(tables), {}
    for name, tensor in row_state(tables).items():
        if tensor.dim() and name.startswith(f"{ROWS}/"):  # masters lie where the rows do
            box = boxes[name.removeprefix(f"{ROWS}/").rpartition("/")[0]]
            parts = [part[: tensor.dim()] for part in (box.whole, box.offset, box.shape)]
            found[name] = Box(*parts)
    return found


def begin_keys(tables: Tables) -> None:
    """A run begins with the keys of another one, where it has loaded some."""
    for work in tables.keyed:
        for table in work.tables:
            table.begin()


def forget_keys(tables: Tables) -> None:
    """The state of keys was put back by others, so that what was found from it is void."""
    for work in tables.keyed:
        for table in work.tables:
            table.forget()


def row_shares(tables: Tables) -> dict[str, dict[str, Any]]:
    """How each table is shared out, by NETWORK/NAME, as JSON data: the `rows` that each rank has, and their `bytes`
    with those of what moves them; `each`: every rank has all of them."""
    found: dict[str, dict[str, Any]] = {}
    for work in tables.at_work:
        matrix, wide = work.matrix, [work.matrix.weight]
        if work.mover:
            wide += work.mover.slots.values()
        size = sum(tensor.element_size() * prod(tensor.shape[1:]) for tensor in wide)
        for table in matrix.layout.tables:
            rows = [0] * tables.group.world
            for stretch in matrix.layout.stretches:
                if stretch.table == table.name:
                    rows[stretch.owner] += stretch.rows
            share = {"shape": [table.rows, table.dim], "rows": rows, "bytes": [size * count for count in rows]}
            found[matrix.path(table.name)] = {**share, "each": matrix.layout.everywhere}
    return found
