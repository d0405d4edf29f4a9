"""Lines of a matrix by their numbers. Rows of tables lie far apart, so that a step waits for memory: torch's own
`index_select` and `index_copy_` wait for one line after the other, and take twice as long."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def lines_of(matrix: Tensor, rows: Tensor) -> Tensor:
    """A copy of these lines, [n, dim], of a matrix float32 or bf16 [all, dim]; `rows` are int64 [n]."""
    # As bags of one line each, since bags are fetched ahead.
    each = torch.arange(len(rows) + 1)
    return F.embedding_bag(rows, matrix, each, mode="sum", include_last_offset=True)


def put_lines(matrix: Tensor, rows: Tensor, lines: Tensor) -> None:
    """Let these rows (int64 [n], each once) of a matrix [all, dim] be `lines`, [n, dim]; all are contiguous."""
    if torch.get_num_threads() > 1:
        matrix.index_copy_(0, rows, lines)
        return
    line = np.dtype((np.void, matrix.element_size() * matrix.shape[1]))  # numpy copies what has a type of its own whole
    np.put(_bytes(matrix).view(line), rows.numpy(), _bytes(lines).view(line))


def add_lines(matrix: Tensor, rows: Tensor, lines: Tensor) -> None:
    """Add `lines` to these rows of a matrix; all as above, float32."""
    if torch.get_num_threads() > 1:
        matrix.index_add_(0, rows, lines)  # without a factor: others than 1 are its slow path
    else:
        put_lines(matrix, rows, lines_of(matrix, rows).add_(lines))


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()
