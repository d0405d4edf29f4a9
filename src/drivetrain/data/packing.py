"""Prepared documents as samples: packed back to back, none cut short, each position with its document's number."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.documents import file_digest
from drivetrain.data.fingerprint import combined, remembered
from drivetrain.data.indexed import Indexed, beside, open_indexed
from drivetrain.data.recipe import Documents
from drivetrain.data.tokens import checked_digest
from drivetrain.spec.exits import Exit, Failure

IGNORED = -100
"""The target where there is none: what torch's cross-entropy leaves out by itself."""
_PARTS = ("train", "validation", "test")
_GOLDEN = 0x9E3779B97F4A7C15


class Packed:
    """Sample i covers the tokens [i * context, (i + 1) * context] of the part's documents, one after the other.

    As with windows, its last token is the first of the next one, so every token is predicted exactly once but the very
    first. The last sample is padded, never left out. A sample is a dict of int64 arrays `tokens` and `targets`
    [context], `documents` [context + 1] (numbers within the file; of the tokens, and one later of the targets; -1 where
    padded) and `mask` (bool [context]; false where there is no target, which is `IGNORED` there).
    """

    thread_safe = True

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, chosen: np.ndarray | range, context: int, mark: str):
        """`offsets` [documents + 1] are boundaries in `tokens`, `chosen` the ascending numbers of the part's documents.

        A range of documents stays memory-mapped; any other choice takes 24 bytes of memory for each document. `mark` is
        the fingerprint.
        """
        self.fingerprint = mark
        self._args: tuple[Any, ...] = ()
        self._tokens, self._context, self._numbers = tokens, context, chosen
        if isinstance(chosen, range):  # its boundaries are a part of those there are
            self._starts = offsets[chosen.start : chosen.stop + 1]
            self._first, self._shifts = int(self._starts[0]), None
        else:
            lengths = offsets[chosen + 1] - offsets[chosen]
            self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            self._first, self._shifts = 0, offsets[chosen] - self._starts[:-1]
        self.size = int(self._starts[-1]) - self._first
        self._count = max(0, -(-(self.size - 1) // context))

    def __len__(self) -> int:
        """Number of samples, the padded one too."""
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers map the file again instead of being sent its content."""
        if not self._args:
            return super().__reduce__()  # type: ignore[return-value]
        return _reopened, self._args

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, np.ndarray]]:
        """The samples with these ids."""
        width = self._context + 1
        tokens = np.zeros((len(ids), width), np.int64)
        documents = np.full((len(ids), width), -1, np.int64)
        starts = self._first + np.asarray(ids, np.int64) * self._context
        stops = np.minimum(starts + width, self._starts[-1])
        first = np.searchsorted(self._starts, starts, "right") - 1
        last = np.searchsorted(self._starts, stops - 1, "right")
        for row, (start, stop, low, high) in enumerate(
            zip(starts.tolist(), stops.tolist(), first.tolist(), last.tolist(), strict=True)
        ):
            self._fill(tokens[row], documents[row], start, stop, low, high)
        targets = np.where(documents[:, 1:] >= 0, tokens[:, 1:], IGNORED)
        return [
            {"tokens": one, "targets": aim, "documents": owner, "mask": owner[1:] >= 0}
            for one, aim, owner in zip(tokens[:, :-1], targets, documents, strict=True)
        ]

    def _fill(self, tokens: np.ndarray, documents: np.ndarray, start: int, stop: int, low: int, high: int) -> None:
        """One row from the positions [start, stop), which lie in the part's documents [low, high)."""
        cuts = np.clip(self._starts[low : high + 1], start, stop)
        lengths, count = np.diff(cuts), stop - start
        if self._shifts is None:
            tokens[:count] = self._tokens[start:stop]
            numbers = np.arange(self._numbers[0] + low, self._numbers[0] + high)
        else:
            tokens[:count] = self._tokens[np.arange(start, stop) + np.repeat(self._shifts[low:high], lengths)]
            numbers = self._numbers[low:high]
        documents[:count] = np.repeat(numbers, lengths)


def open_documents(settings: Documents, cache: Path) -> Packed:
    """The part of a prepared or Megatron file that the settings name, memory-mapped.

    The first start reads it once, for its digest and its largest token. Raises Failure(66) where a file is missing, 65
    where index or digest does not fit it, a token is beyond the vocabulary, or the part holds not one sample.
    """
    assert settings.context is not None, "spec derives the context"
    opened = open_indexed(settings.path)
    chosen = choose(len(opened.offsets) - 1, settings)
    digests = _digests(opened, settings.vocabulary, cache)
    share = [] if settings.part == "all" else [settings.by, *map(repr, map(float, settings.split))]
    packed = _packed(opened, chosen, settings, combined([*digests, settings.part, *share]))
    if len(packed) == 0:
        cause = f"{settings.path}: {len(chosen)} documents, {packed.size} tokens in {settings.part}: not one sample"
        raise Failure(Exit.BAD_DATA, cause, "look at part and split, or prepare more text")
    return packed


def segments(sample: Any) -> list[tuple[int | None, int, np.ndarray]] | None:
    """A sample's tokens by document: (number, place of the first token, tokens), the last target among them.

    The number is -1 for padding, None where a source knows no documents. None where the sample is none of tokens.
    """
    if isinstance(sample, np.ndarray) and sample.ndim == 1 and sample.dtype.kind in "iu":
        return [(None, 0, sample)]
    if not isinstance(sample, dict) or "documents" not in sample:
        return None
    owners = sample["documents"]
    tokens = np.concatenate([sample["tokens"], np.maximum(sample["targets"][-1:], 0)])
    cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    return [(int(owners[a]), a, tokens[a:b]) for a, b in pairwise(cuts)]


def choose(count: int, settings: Documents) -> np.ndarray | range:
    """The numbers of the part's documents, ascending: a range where they stand side by side."""
    if settings.part == "all":
        return range(count)
    train, validation, test = settings.split
    # Without a share for it, test has nothing, whatever the rounding of the sum.
    bounds = [0.0, train, train + validation if test else 1.0, 1.0]
    place = _PARTS.index(settings.part)
    if settings.by == "range":
        return range(round(count * bounds[place]), round(count * bounds[place + 1]))
    draw = _draws(np.arange(count, dtype=np.uint64))
    return np.flatnonzero((draw >= bounds[place]) & (draw < bounds[place + 1]))


def _draws(numbers: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each document, the same for ever: splitmix64 of its number."""
    values = numbers * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(31)
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _digests(opened: Indexed, vocabulary: int | None, cache: Path) -> list[str]:
    """Digests of tokens and index. Raises Failure(65) where they are not the manifest's."""
    tokens, index, dtype = opened.data, opened.index, opened.tokens.dtype
    known = opened.manifest.get("files", {})
    found = [
        remembered(tokens, cache, f"{dtype.name}<{vocabulary}", lambda: checked_digest(tokens, dtype, vocabulary)),
        remembered(index, cache, "sha256", lambda: file_digest(index)),
    ]
    for path, digest in zip((tokens, index), found, strict=True):
        suffix = path.name.removeprefix(opened.name.name)
        if known and known.get(suffix, {}).get("sha256") != digest:
            cause = f"{path} is not what its manifest says"
            raise Failure(Exit.BAD_DATA, cause, f"prepare it again, or bring {beside(opened.name, '.json')} along")
    return found


def _packed(opened: Indexed, chosen: np.ndarray | range, settings: Documents, mark: str) -> Packed:
    packed = Packed(opened.tokens, opened.offsets, chosen, settings.context or 1, mark)
    packed._args = (settings, mark)
    return packed


def _reopened(settings: Documents, mark: str) -> Packed:
    opened = open_indexed(settings.path)
    return _packed(opened, choose(len(opened.offsets) - 1, settings), settings, mark)
