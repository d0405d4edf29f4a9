"""Prepared documents as samples: packed back to back, none cut short, each position with its document's number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.fingerprint import FileStamp, FileWatcher, combined, file_digest, remembered
from drivetrain.data.indexed import Indexed, beside, open_indexed
from drivetrain.data.recipe import Documents
from drivetrain.data.split import choose, marks
from drivetrain.data.stacked import IGNORED, Stacked
from drivetrain.data.tokens import checked_digest
from drivetrain.data.windows import Again, by_batch
from drivetrain.spec.exits import Exit, Failure

__all__ = ["IGNORED", "Packed", "PackedTogether", "open_documents", "segments"]


class Mapped(NamedTuple):
    """The files that arrays are mapped from, and how another process maps them again."""

    files: tuple[FileStamp, ...]
    again: Again


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
        mapped: Mapped | None = None,
    ) -> None:
        """`offsets` [documents + 1] are boundaries in `tokens`, `chosen` the ascending numbers of the part's documents.

        A range of documents stays memory-mapped. Any other choice takes 16 bytes of memory for each document, and as
        many for each run of them that stand side by side. `mark` is the fingerprint; data workers are sent the
        arrays themselves where nothing is `mapped`.
        """
        self.fingerprint = mark
        self.context = context
        mapped = mapped or Mapped((), (Packed, (tokens, offsets, chosen, context, mark)))
        self.files, self._again = mapped
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
        return self._alone.read(np.asarray(ids, np.int64), positions)

    def read_each(self, batches: Sequence[np.ndarray]) -> list[Stacked]:
        """`read` for each of these arrays of ids, by one gather."""
        return self._alone.read_each(batches)

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
    """Several packed sources of one context as one, whose sample ids count through them."""

    thread_safe = True

    def __init__(self, sources: Sequence[Packed]) -> None:
        self.fingerprint = "+".join(source.fingerprint for source in sources)
        self._sources, self._width = list(sources), sources[0].context + 1
        self._files = FileWatcher(list(chain.from_iterable(source.files for source in sources)))
        # All sources one after the other, as if they were one stream: sample i of all begins at i * context. Where the
        # last sample of a source is full, its last target has the place of the next source's first token.
        self._firsts = np.array([0, *accumulate(map(len, sources))], np.int64)[:-1]
        owners, runs, ends, shifts = [], [], [], []
        for number, source in enumerate(sources):
            moved = self._firsts[number] * source.context - source.first
            # An empty run at a source's end would begin behind the next source's first one: runs must be in order.
            filled = source.runs[1:] > source.runs[:-1]
            owners.append(np.full(filled.sum(), number))
            runs.append(source.runs[:-1][filled] + moved)
            ends.append(source.runs[1:][filled] + moved)
            shifts.append(source.shifts[filled] - moved)
        self._owners, self._shifts = np.concatenate(owners), np.concatenate(shifts)
        self._runs, self._ends = np.concatenate(runs), np.concatenate(ends)
        self._uncut = self._ends - self._width  # the last place of each run where a sample may begin and be whole
        self._last = self._ends[np.searchsorted(self._owners, self._owners, "right") - 1]  # where a run's source ends
        self._views, self._kinds, places = _views([source.tokens for source in sources], self._width)
        self._places = self._shifts + places[self._owners]

    def __len__(self) -> int:
        """Samples of all sources together."""
        return sum(map(len, self._sources))

    def __reduce__(self) -> Again:
        """Data workers open the sources again."""
        return PackedTogether, (self._sources,)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Stacked:
        """The samples with these ids."""
        return self.read_each([ids])[0]

    def read_each(self, batches: Sequence[np.ndarray]) -> list[Stacked]:
        """The samples with these ids for each of several batches, by one gather."""
        self._files.check()
        windows, lengths = self._windows(np.concatenate(batches))
        each: list[np.ndarray | None] = [None] * len(batches)
        if lengths is not None:
            for place, own in enumerate(by_batch(lengths, batches)):
                # What a batch is must not depend on what it is read with: without a short sample it has no lengths.
                if (own < self._width).any():
                    each[place] = own
        parts = zip(by_batch(windows, batches), each, batches, strict=True)
        return [Stacked(rows, own, partial(self._documents, ids)) for rows, own, ids in parts]

    def _windows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The tokens of samples, int64 [samples, width], and their lengths where some are short."""
        starts = ids * (self._width - 1)
        runs = self._runs.searchsorted(starts, "right") - 1
        places = starts + self._places[runs]
        (cut,) = (starts > self._uncut[runs]).nonzero()
        lengths = None
        if len(cut):
            windows, lengths = self._mended(starts, runs, places, cut)
        else:
            windows = self._rows(runs, places)
        return windows.astype(np.int64, copy=False), lengths

    def _rows(self, runs: np.ndarray, places: np.ndarray) -> np.ndarray:
        """What stands at these places: [samples, width]."""
        if len(self._views) == 1:
            return self._views[0][places]
        rows, kinds = np.empty((len(places), self._width), np.int64), self._kinds[self._owners[runs]]
        for kind, view in enumerate(self._views):
            (mine,) = (kinds == kind).nonzero()
            rows[mine] = view[places[mine]]
        return rows

    def _mended(
        self, starts: np.ndarray, runs: np.ndarray, places: np.ndarray, cut: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows some of which, `cut`, go on in the runs that follow their own, or are the short ones that end a source;
        and the lengths of all where some are short."""
        begins, last = starts[cut], self._last[runs[cut]]
        stops = np.minimum(begins + self._width, last)
        short = stops < begins + self._width
        if not short.any():
            # Gathered as if each went on in its own run; what is not of that run is written over.
            rows = self._rows(runs, places)
            self._fill(rows, cut, runs[cut] + 1, begins, stops)
            return rows, None
        rows, lengths = np.zeros((len(places), self._width), np.int64), np.full(len(places), self._width)
        lengths[cut] = stops - begins
        (whole,) = (lengths == self._width).nonzero()
        rows[whole] = self._rows(runs[whole], places[whole])
        # A whole one has what its first run gives, and is filled from the next one on; a short one has nothing yet.
        self._fill(rows, cut, runs[cut] + ~short, begins, stops)
        return rows, lengths

    def _fill(
        self, windows: np.ndarray, rows: np.ndarray, runs: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> None:
        """Put in what samples have of these runs and, up to where they stop, of those after them."""
        while len(rows):  # once for each run that the longest of them goes through
            begins, ends = np.maximum(self._runs[runs], starts), np.minimum(self._ends[runs], stops)
            owners, shifts = self._owners[runs], self._shifts[runs]
            pieces = (owners, rows, begins - starts, ends - starts, begins + shifts, ends + shifts)
            for owner, row, place, until, first, after in zip(*(one.tolist() for one in pieces), strict=True):
                windows[row, place:until] = self._sources[owner].tokens[first:after]
            (more,) = (ends < stops).nonzero()
            rows, runs, starts, stops = rows[more], runs[more] + 1, starts[more], stops[more]

    def _documents(self, ids: np.ndarray) -> np.ndarray:
        documents = np.empty((len(ids), self._width), np.int64)
        owners = np.searchsorted(self._firsts, ids, "right") - 1
        for number, source in enumerate(self._sources):
            (mine,) = (owners == number).nonzero()
            documents[mine] = source.documents(ids[mine] - self._firsts[number])
        return documents


def _views(maps: Sequence[np.ndarray], width: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """One view over all maps of a type, with a row for each place a sample may begin at: so samples of several files
    are one gather of rows, which is a plain copy. What lies between the maps is never touched.

    Returns the views, and for each map which one it is in, and the row of its first token (both int64 [maps]).
    """
    found: dict[tuple[Any, int], list[np.ndarray]] = {}
    for tokens in maps:
        found.setdefault(_kind(tokens), []).append(tokens)
    views, first = [], {}
    for kind, alike in found.items():
        lowest = min(alike, key=_address)
        item = lowest.itemsize
        rows = max((_address(tokens) - _address(lowest)) // item + len(tokens) for tokens in alike) - width + 1
        shape, strides = (max(0, rows), width), (item, item)
        views.append(np.lib.stride_tricks.as_strided(lowest, shape, strides, writeable=False))
        first[kind] = _address(lowest)
    kinds = np.array([list(found).index(_kind(tokens)) for tokens in maps], np.int64)
    places = [(_address(tokens) - first[_kind(tokens)]) // tokens.itemsize for tokens in maps]
    return views, kinds, np.array(places, np.int64)


def _kind(tokens: np.ndarray) -> tuple[Any, int]:
    """What arrays have in common whose items one view can hold."""
    return tokens.dtype, _address(tokens) % tokens.itemsize


def _address(tokens: np.ndarray) -> int:
    return tokens.__array_interface__["data"][0]


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
    seen = (FileStamp.now(opened.data), FileStamp.now(opened.index))
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
    opened: Indexed, chosen: np.ndarray | range, settings: Documents, mark: str, seen: tuple[FileStamp, ...]
) -> Packed:
    mapped = Mapped(seen, (_reopened, (settings, mark, seen)))
    return Packed(opened.tokens, opened.offsets, chosen, settings.context or 1, mark, mapped)


def _reopened(settings: Documents, mark: str, seen: tuple[FileStamp, ...]) -> Packed:
    """The same samples in another process; Failure(65) where the files are not the same any more."""
    for file in seen:
        file.check()
    opened = open_indexed(settings.path)
    return _packed(opened, choose(len(opened.offsets) - 1, settings), settings, mark, seen)
