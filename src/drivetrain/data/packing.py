"""Prepared documents as samples: packed back to back, none cut short, each position with its document's number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.documents import file_digest
from drivetrain.data.fingerprint import Seen, Watched, combined, remembered
from drivetrain.data.indexed import Indexed, beside, open_indexed
from drivetrain.data.recipe import Documents
from drivetrain.data.split import choose, marks
from drivetrain.data.stacked import IGNORED, Stacked
from drivetrain.data.tokens import checked_digest
from drivetrain.data.windows import Again
from drivetrain.spec.exits import Exit, Failure

__all__ = ["IGNORED", "Packed", "PackedTogether", "open_documents", "segments"]


class Packed:
    """Sample i covers the tokens [i * context, (i + 1) * context] of the part's documents, one after the other.

    As with windows, its last token is the first of the next one, so every token is predicted exactly once but the very
    first. The last sample is padded, never left out. A sample is a dict of int64 arrays `tokens` and `targets`
    [context], `documents` [context + 1] (numbers within the file; of the tokens, and one later of the targets; -1 where
    padded) and `mask` (bool [context]; false where there is no target, which is `IGNORED` there).
    """

    thread_safe = True

    def __init__(
        self,
        tokens: np.ndarray,
        offsets: np.ndarray,
        chosen: np.ndarray | range,
        context: int,
        mark: str,
        files: Sequence[Seen] = (),
        again: Again | None = None,
    ) -> None:
        """`offsets` [documents + 1] are boundaries in `tokens`, `chosen` the ascending numbers of the part's documents.

        A range of documents stays memory-mapped. Any other choice takes 16 bytes of memory for each document, and as
        many for each run of them that stand side by side. `mark` is the fingerprint, `files` what is mapped; data
        workers are sent `again`.
        """
        self.fingerprint = mark
        self.context = context
        self.files = Watched(files)
        self._again: Again = again or (Packed, (tokens, offsets, chosen, context, mark))
        self.tokens, self._numbers = np.asarray(tokens), chosen
        if isinstance(chosen, range):  # its boundaries are a part of those there are, and it is one run
            self._starts = np.asarray(offsets[chosen.start : chosen.stop + 1])
            self.runs, self.shifts = self._starts[[0, -1]], np.zeros(1, np.int64)
        else:
            lengths = offsets[chosen + 1] - offsets[chosen]
            self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            heads = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
            self.runs = np.append(self._starts[heads], self._starts[-1])
            self.shifts = offsets[chosen[heads]] - self._starts[heads]
        width, item = context + 1, self.tokens.itemsize
        # A view with a row for each place a sample may begin at: a gather of rows is a plain copy.
        self.stretches = np.lib.stride_tricks.as_strided(
            self.tokens, (max(0, len(tokens) - context), width), (item, item), writeable=False
        )
        self.first = int(self._starts[0])
        self.size = int(self._starts[-1]) - self.first
        self._count = max(0, -(-(self.size - 1) // context))
        self._alone = PackedTogether([self])

    def __len__(self) -> int:
        """Number of samples, the padded one too."""
        return self._count

    def __reduce__(self) -> Again:
        """Data workers map the file again instead of being sent its content."""
        return self._again

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Stacked:
        """The samples with these ids."""
        return self._alone.read(np.zeros(len(ids), np.int64), np.asarray(ids, np.int64))

    def documents(self, ids: np.ndarray) -> np.ndarray:
        """The documents of samples, int64 [samples, context + 1]; -1 where padded."""
        starts = self.first + ids * self.context
        stops = np.minimum(starts + self.context + 1, self._starts[-1])
        first = np.searchsorted(self._starts, starts, "right") - 1
        rows, met = _expanded(first, np.searchsorted(self._starts, stops - 1, "right"))
        begins = np.maximum(self._starts[met], starts[rows])
        numbers = met + self._numbers.start if isinstance(self._numbers, range) else self._numbers[met]
        owners = np.repeat(numbers, np.minimum(self._starts[met + 1], stops[rows]) - begins)
        width = self.context + 1
        if len(owners) == len(starts) * width:
            return owners.reshape(-1, width)
        documents = np.full((len(starts), width), -1, np.int64)
        documents[np.arange(width) < (stops - starts)[:, None]] = owners
        return documents


class PackedTogether:
    """Samples of several packed sources of one context, read at once."""

    def __init__(self, sources: Sequence[Packed]) -> None:
        self._sources, self._width = list(sources), sources[0].context + 1
        # All runs one after the other, as if the sources were one stream; `_begins` is where each source has its first.
        sizes = [source.size for source in sources]
        self._begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        moved = [begin - source.first for begin, source in zip(self._begins[:-1].tolist(), sources, strict=True)]
        runs = [source.runs[:-1] + by for source, by in zip(sources, moved, strict=True)]
        self._runs = np.concatenate([*runs, self._begins[-1:]])
        self._shifts = np.concatenate([source.shifts - by for source, by in zip(sources, moved, strict=True)])

    def read(self, owners: np.ndarray, ids: np.ndarray) -> Stacked:
        """The samples with these ids, each of the source that stands in the same place of `owners`."""
        windows = np.empty((len(ids), self._width), np.int64)
        starts = self._begins[owners] + ids * (self._width - 1)
        after = self._runs.searchsorted(starts, "right")  # the run after the one that a sample begins in
        places, stops = starts + self._shifts[after - 1], starts + self._width
        one_run = bool((stops <= self._runs[after]).all())  # each stands in its file as it is
        lengths = None
        if not one_run:
            stops = np.minimum(stops, self._begins[owners + 1])
            lengths = stops - starts
            places[lengths < self._width] = 0  # the row there is overwritten
        parts = []
        for number, source in enumerate(self._sources):
            (mine,) = (owners == number).nonzero()
            if len(mine):
                source.files.check()
                parts.append((source, mine))
                if len(source.stretches):
                    windows[mine] = source.stretches[places[mine]]
        if lengths is not None:
            self._fill(windows, owners, starts, stops, after - 1 + (lengths == self._width))
        return Stacked(windows, lengths, lambda: self._documents(parts, ids))

    def _fill(
        self, windows: np.ndarray, owners: np.ndarray, starts: np.ndarray, stops: np.ndarray, runs: np.ndarray
    ) -> None:
        """Put in what samples have of these runs and of those after them, and zeros behind their ends."""
        for row in np.flatnonzero(stops - starts < self._width).tolist():
            windows[row] = 0
        rows, met = _expanded(runs, np.searchsorted(self._runs, stops - 1, "right"))
        begins = np.maximum(self._runs[met], starts[rows])
        sizes = np.minimum(self._runs[met + 1], stops[rows]) - begins
        columns = (owners[rows], rows, begins - starts[rows], begins + self._shifts[met], sizes)
        for owner, row, place, source, size in zip(*(column.tolist() for column in columns), strict=True):
            windows[row, place : place + size] = self._sources[owner].tokens[source : source + size]

    def _documents(self, parts: Sequence[tuple[Packed, np.ndarray]], ids: np.ndarray) -> np.ndarray:
        documents = np.empty((len(ids), self._width), np.int64)
        for source, mine in parts:
            documents[mine] = source.documents(ids[mine])
        return documents


def _expanded(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers of the ranges from `low` to below `high`, one range after the other, and which range each is of."""
    counts = high - low
    ranges = np.repeat(np.arange(len(low)), counts)
    return ranges, np.arange(len(ranges)) + np.repeat(low - (np.cumsum(counts) - counts), counts)


def open_documents(settings: Documents, cache: Path) -> Packed:
    """The part of a prepared or Megatron file that the settings name, memory-mapped.

    The first start reads it once, for its digest and its largest token. Raises Failure(66) where a file is missing, 65
    where index or digest does not fit it, a token is beyond the vocabulary, or the part holds not one sample.
    """
    assert settings.context is not None, "spec derives the context"
    opened = open_indexed(settings.path)
    seen = (Seen.now(opened.data), Seen.now(opened.index))
    chosen = choose(len(opened.offsets) - 1, settings)
    digests = _digests(opened, settings.vocabulary, cache)
    packed = _packed(opened, chosen, settings, combined([*digests, *marks(settings)]), seen)
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


def _packed(
    opened: Indexed, chosen: np.ndarray | range, settings: Documents, mark: str, seen: tuple[Seen, ...]
) -> Packed:
    again = (_reopened, (settings, mark, seen))
    return Packed(opened.tokens, opened.offsets, chosen, settings.context or 1, mark, seen, again)


def _reopened(settings: Documents, mark: str, seen: tuple[Seen, ...]) -> Packed:
    """The same samples in another process; Failure(65) where the files are not the same any more."""
    for file in seen:
        file.check()
    opened = open_indexed(settings.path)
    return _packed(opened, choose(len(opened.offsets) - 1, settings), settings, mark, seen)
