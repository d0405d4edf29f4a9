"""Rows of texts as samples of token ids, tokenized once when a source is opened."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.fingerprint import combined
from drivetrain.data.rows import place_of
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

UNLABELLED = -1
"""The class of a sample without a label; its score is NaN."""
_ROWS = 1024  # that are tokenized together


@dataclass(frozen=True)
class Reading:
    """How rows are read: the columns of the text or texts and of the label, the labels in order (empty for
    regression), and after how many tokens a sample is cut."""

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    length: int


class Tokenized:
    """Samples {"tokens", "segments", "label", "row"}: int32 [length], uint8 [length] or None, a class or a score, and
    the number of the row that it is of.

    Where they are numbered `by_length`, a sample with a higher number is as long or longer.
    """

    thread_safe = True

    def __init__(
        self,
        tokens: np.ndarray,
        segments: np.ndarray | None,
        lengths: np.ndarray,
        labels: np.ndarray,
        *,
        by_length: bool,
    ) -> None:
        """`tokens` int32 and `segments` uint8 are those of all rows, one after the other; `lengths` say how many each
        has, `labels` are float64 [rows]."""
        self.by_length = by_length
        self.notes: tuple[str, ...] = ()
        self.fingerprint = ""
        self._tokens, self._segments, self._labels = tokens, segments, labels
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        # Stable, so that rows of one length are numbered alike by every version of numpy.
        self._rows = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._rows)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The samples with these numbers."""
        return [self._sample(int(row)) for row in self._rows[ids]]

    def digest(self) -> str:
        """SHA-256 of all that samples are made of."""
        digest = hashlib.sha256()
        for part in (self._tokens, self._ends, self._labels, self._segments):
            if part is not None:
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def _sample(self, row: int) -> dict[str, Any]:
        span = slice(self._starts[row], self._ends[row])
        segments = None if self._segments is None else self._segments[span]
        return {"tokens": self._tokens[span], "segments": segments, "label": self._labels[row], "row": row}


class TokenizedWhenRead:
    """The samples of `Tokenized`, of rows that may be without labels and that each are read once: nothing of them is
    kept, however many there are."""

    thread_safe = True

    def __init__(self, source: Source, reading: Reading, tokenizer: Any) -> None:
        self.fingerprint = source.fingerprint
        self._source, self._reading, self._tokenizer = source, reading, tokenizer

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._source)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The samples with these numbers. Raises Failure(65) as `tokenized`."""
        numbers, rows = ids.tolist(), list(self._source.read(ids, positions))
        block, labels = _checked(self._source, numbers, rows, self._reading, self._tokenizer, unlabelled=True)
        made = Tokenized(block.tokens, block.segments, block.lengths, np.array(labels, np.float64), by_length=False)
        samples = made.read(np.arange(len(rows)), positions)
        return [sample | {"row": number} for sample, number in zip(samples, numbers, strict=True)]


def label_names(source: Source, label: str) -> tuple[str, ...]:
    """The labels that a source has: numbers in their order, words by the alphabet. Raises Failure(65) for fewer than
    two, 78 for numbers that are not whole, which are scores rather than names."""
    found = set()
    for _, row in _rows(source, (label,)):
        if not _empty(row[label]):
            found.add(row[label])
    if len(found) < 2:
        cause = f"column {label!r} of the training data has {len(found)} labels, where two or more are wanted"
        raise Failure(Exit.BAD_DATA, cause, "name another column, or give task.labels, or `regression: true`")
    numbers: dict[Any, float] = {}
    for value in found:
        number = _number(value)
        if number is not None:
            numbers[value] = number
    if len(numbers) < len(found):
        return tuple(sorted(map(str, found)))
    ordered = sorted(found, key=numbers.__getitem__)
    for value in ordered:
        if not numbers[value].is_integer():
            cause = f"task.label: column {label!r} of the training data has {len(found)} numbers such as {value}"
            raise Failure(Exit.BAD_RECIPE, cause, "`regression: true` for scores; task.labels where they name classes")
    return tuple(map(str, ordered))


def tokenized(source: Source, reading: Reading, tokenizer: Any, *, by_length: bool, unlabelled: bool) -> Tokenized:
    """A source of rows as samples. `unlabelled`: rows may be without a label.

    Raises Failure(65) with the place of a row whose text is no text or gives no token, or whose label is none of them.
    """
    blocks, labels = [], []
    for first, rows in _blocks(source):
        numbers = range(first, first + len(rows))
        block, found = _checked(source, numbers, rows, reading, tokenizer, unlabelled=unlabelled)
        blocks.append(block)
        labels += found
    tokens = np.concatenate([block.tokens for block in blocks])
    lengths = np.concatenate([block.lengths for block in blocks])
    parts = [block.segments for block in blocks if block.segments is not None]
    segments = np.concatenate(parts) if parts else None
    made = Tokenized(tokens, segments, lengths, np.array(labels, np.float64), by_length=by_length)
    # The samples themselves too: another version of the tokenizer gives other ones of the same rows.
    made.fingerprint = combined([source.fingerprint, made.digest()])
    made.notes = tuple(getattr(source, "notes", ()))
    cut = sum(block.cut for block in blocks)
    if cut:
        made.notes += (f"{cut} of {len(made)} samples are cut to {reading.length} tokens",)
    return made


class _Block(NamedTuple):
    """Rows that were tokenized together: int32 tokens and uint8 segments of all of them, lengths of each, and how many
    were cut."""

    tokens: np.ndarray
    segments: np.ndarray | None
    lengths: np.ndarray
    cut: int


def _checked(
    source: Source,
    numbers: Sequence[int],
    rows: Sequence[dict[str, Any]],
    reading: Reading,
    tokenizer: Any,
    *,
    unlabelled: bool,
) -> tuple[_Block, list[float]]:
    """The rows with these numbers as tokens, and their labels."""
    labels = []
    for number, row in zip(numbers, rows, strict=True):
        _require_texts(row, reading.texts, source, number)
        labels.append(_label(row, reading, source, number, unlabelled))
    block = _encoded(rows, reading, tokenizer)
    if not block.lengths.all():
        raise _bad(source, numbers[int(block.lengths.argmin())], "its text gives no token", "mend or remove it")
    return block, labels


def _encoded(rows: Sequence[dict[str, Any]], reading: Reading, tokenizer: Any) -> _Block:
    columns = []
    for name in reading.texts:
        columns.append([row[name] for row in rows])
    found = tokenizer(*columns, truncation=True, max_length=reading.length)
    lengths = np.array([len(tokens) for tokens in found["input_ids"]], np.int64)
    tokens = np.fromiter(chain.from_iterable(found["input_ids"]), np.int32, lengths.sum())
    segments = None
    if "token_type_ids" in found:
        segments = np.fromiter(chain.from_iterable(found["token_type_ids"]), np.uint8, lengths.sum())
    # Tokenizers in plain Python have no encodings, and do not tell what they have cut.
    cut = sum(bool(each.overflowing) for each in found.encodings or ())
    return _Block(tokens, segments, lengths, cut)


def _blocks(source: Source) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for first in range(0, len(source), _ROWS):
        numbers = np.arange(first, min(first + _ROWS, len(source)), dtype=np.int64)
        yield first, list(source.read(numbers, numbers))


def _rows(source: Source, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every row with its number. Raises Failure(65) where one lacks a column."""
    for first, rows in _blocks(source):
        for number, row in enumerate(rows, first):
            _require_columns(row, needed, source, number)
            yield number, row


def _require_columns(row: Any, needed: Sequence[str], source: Source, number: int) -> None:
    if not isinstance(row, dict):
        raise _bad(source, number, f"a sample is a {type(row).__name__}, no mapping", "use a source of rows")
    for name in needed:
        if name not in row:
            why = f"it has no column {name!r}{nearest(name, list(row))}"
            raise _bad(source, number, why, f"task.texts and task.label name columns: {', '.join(map(str, row))}")


def _require_texts(row: Any, names: Sequence[str], source: Source, number: int) -> None:
    _require_columns(row, names, source, number)
    for name in names:
        if not isinstance(row[name], str):
            raise _bad(source, number, f"{name} is no text but {row[name]!r}", "mend or remove it")


def _label(row: dict[str, Any], reading: Reading, source: Source, number: int, unlabelled: bool) -> float:
    """The class or score. Labels are names or numbers of them; null, "", NaN and -1 say that there is none, but for
    what is a label by this name."""
    value = row.get(reading.label)
    number_, place = _number(value), _place(value, reading.labels)
    missing = place is None and (_empty(value) or (bool(reading.labels) and number_ == UNLABELLED))
    if missing and unlabelled:
        return UNLABELLED if reading.labels else math.nan
    if missing:
        # A column that is not there at all is told as that, not as a label that is missing in this row.
        _require_columns(row, (reading.label,), source, number)
        why = f"it has no label but {value!r}" if value else "it has no label"
        raise _bad(source, number, why, "only test sets may be without labels; task.labels says what is one")
    if not reading.labels:
        if number_ is None:
            raise _bad(source, number, f"{value!r} is no finite number", "`regression: true` reads numbers")
        return number_
    if place is None:
        raise _bad(source, number, f"label {value!r} is none of {', '.join(reading.labels)}", "mend it, or task.labels")
    return place


def _empty(value: Any) -> bool:
    """Whether it says nothing: null, "", or NaN, which is what tables of numbers have for it."""
    try:
        return value in (None, "") or math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _place(value: Any, labels: Sequence[str]) -> int | None:
    """Which of the labels a value is: by its name or, where these are words, by its number. Of labels that are numbers
    themselves it is the equal one ("1.0" is "1"), never the one at that place; None where it is none of them."""
    if value is not None and str(value) in labels:
        return labels.index(str(value))
    number, names = _number(value), [_number(label) for label in labels]
    if None in names:
        if number is None or number not in range(len(labels)):
            return None
        return int(number)
    return names.index(number) if number in names else None


def _number(value: Any) -> float | None:
    """A finite number that is given as one or as text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    return number


def _bad(source: Source, number: int, why: str, hint: str) -> Failure:
    place = place_of(source, number)
    return Failure(Exit.BAD_DATA, f"{place}: {why}", hint, file=place)
