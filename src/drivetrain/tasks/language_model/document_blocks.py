"""Attention within documents, document by document: no mask of positions by positions is ever made.

Documents of about one length are a batch, filled up behind: what a causal position sees is before it, so that it never
sees the filling.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.tasks.language_model.rows import rows_at

_SHORTEST = 16
"""Documents up to this length make one batch: their products take next to no time."""


class Blocks(NamedTuple):
    """The documents of a micro-batch in batches of (documents, positions), `shapes`, one after the other.

    `rows` [places]: which of the micro-batch's positions stands at a place (any one, where `empty`); `places`
    [samples * positions]: where each position stands. All int64 and bool, as `rows_at` takes them.
    """

    rows: Tensor
    places: Tensor
    empty: Tensor
    shapes: tuple[tuple[int, int], ...]


def blocks_of(documents: Tensor) -> Blocks:
    """How the documents of [samples, positions] (int64; neighbours of one document have one number) lie in batches.

    Padding, which has a negative number, is taken for a document.
    """
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = begins.flatten().nonzero().squeeze(1)
    lengths = torch.diff(starts, append=starts.new_tensor([documents.numel()]))
    longest = [_SHORTEST]
    while longest[-1] < documents.shape[1]:
        longest.append(2 * longest[-1])
    batch_of = torch.bucketize(lengths, lengths.new_tensor(longest))
    rows, filled, shapes = [], [], []
    for batch in batch_of.unique().tolist():
        chosen = batch_of == batch
        start, length = starts[chosen].unsqueeze(1), lengths[chosen].unsqueeze(1)
        offsets = torch.arange(int(length.max()), device=documents.device)
        inside = offsets < length
        rows.append((start + offsets.where(inside, 0)).flatten())
        filled.append(inside.flatten())
        shapes.append(tuple(inside.shape))
    at, there = torch.cat(rows), torch.cat(filled)
    places = torch.empty_like(documents).flatten()
    places[at[there]] = there.nonzero().squeeze(1)
    return Blocks(at, places, ~there, tuple(shapes))


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, *, grouped: bool) -> Tensor:
    """Causal attention of each document with itself: [samples, heads, positions, size] to the query's shape.

    `grouped`: there are fewer key and value heads, which query heads share.
    """
    samples, _, positions, _ = query.shape
    by_place: list[tuple[Tensor, ...]] = []
    sizes = [documents * length for documents, length in blocks.shapes]
    for part in (query, key, value):
        rows = part.transpose(1, 2).flatten(0, 1)
        by_place.append(rows_at(rows, blocks.rows, blocks.places).split(sizes))
    mixed: list[Tensor] = []
    for (documents, length), *parts in zip(blocks.shapes, *by_place, strict=True):
        shaped = [part.unflatten(0, (documents, length)).transpose(1, 2) for part in parts]
        done = F.scaled_dot_product_attention(*shaped, is_causal=True, enable_gqa=grouped)
        mixed.append(done.transpose(1, 2).flatten(0, 1))
    found = rows_at(torch.cat(mixed), blocks.places, blocks.rows, blocks.empty)
    return found.unflatten(0, (samples, positions)).transpose(1, 2)
