"""From the arrays that a source gives to the tensors of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.columns import ROW, Arrays, Columns, Ragged, scattered
from drivetrain.serving.arrays import padded

Batch = dict[str, Any]
"""Tensors whose first dimension are the samples. `rows`, int64 [samples], their numbers; by feature `ids`, int64
[samples] or [samples, length], -1 where there is none, `id_weights`, float32 likewise, and `numbers`, float32 [samples]
or [samples, width]; by label `labels`, float32 [samples], NaN where there is none; `sample_weights`, float32, and
`groups`, int64, [samples], where the recipe has them.

What is of candidates, several things for each sample, has one more dimension than that, the second one; of ids, the
candidates' lists stand side by side: [samples, candidates * length].
"""
_BY_NAME = ("ids", "id_weights", "numbers", "labels")


def batch_of(samples: Columns, candidates: Collection[str] = ()) -> Batch:
    """A batch of samples; lists are padded to the longest of them.

    Features among `candidates` have, one after the other, as many rows for each sample as the sample has candidates.
    """
    count = len(samples)
    batch: Batch = {"rows": torch.from_numpy(np.asarray(samples.arrays[ROW]))}
    batch |= {part: {} for part in _BY_NAME}
    for key, array in samples.arrays.items():
        part, _, name = key.partition(".")
        if not name:
            continue
        if isinstance(array, Ragged):
            tensor = torch.from_numpy(padded(array, -1 if part == "ids" else 0))
        else:
            tensor = torch.from_numpy(array)
        if name in candidates:
            shape = (count, -1) if part in ("ids", "id_weights") else (count, len(tensor) // count, *tensor.shape[1:])
            tensor = tensor.reshape(shape)
        batch[part][name] = tensor
    for key in ("sample_weights", "groups"):
        if key in samples.arrays:
            batch[key] = torch.from_numpy(samples.arrays[key])
    return batch


def weights_of(batch: Batch) -> Tensor | None:
    """What the samples count, float32 [samples]; None where all count alike."""
    return batch.get("sample_weights")


def one_after_other(parts: Sequence[Arrays]) -> dict[str, np.ndarray | Ragged]:
    """The rows of several sets of the same arrays."""
    counts = [_rows(next(iter(arrays.values()))) for arrays in parts]
    ends = np.cumsum(counts)
    places = [np.arange(end - count, end) for count, end in zip(counts, ends.tolist(), strict=True)]
    return scattered(list(zip(places, parts, strict=True)), int(ends[-1]))


def _rows(column: np.ndarray | Ragged) -> int:
    return len(column.offsets) - 1 if isinstance(column, Ragged) else len(column)
