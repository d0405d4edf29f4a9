"""From a task's documents to tokens and lengths: what each worker of `drivetrain data prepare` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drivetrain.data.cuts import parts_of
from drivetrain.data.documents import InputPart, TokenizeJob, documents
from drivetrain.data.fingerprint import file_digest
from drivetrain.data.json_lines import BadDocument
from drivetrain.data.tokenizers import Tokenizer, open_tokenizer
from drivetrain.spec.exits import Exit, Failure

_BATCH = 1 << 18  # bytes of text that are encoded at a time: encodings take many times their text


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens. `tokenizer` is a tokenizer.json's content, None for bytes.

    `eod` ends each document where it is given; every id must be below `vocabulary`, and is stored as `dtype`.
    """

    tokenizer: bytes | None
    field: str
    eod: int | None
    vocabulary: int
    dtype: str


class LinesSeen(NamedTuple):
    """How many lines or rows a piece of an input has, and the bad ones; `input` is the input's number."""

    input: int
    lines: int
    bad: tuple[BadDocument, ...]


@dataclass(frozen=True)
class TokenizedDocuments:
    """A task's result.

    `lengths` are those of its documents, int64; `inside`: the first one began before this task, `open`: the last one
    goes on, and the last length is that of its part so far. `empty` documents have no length. `largest` is the largest
    id, -1 where there is none. `seen` is of each piece, `digests` of inputs, by number.
    """

    tokens: bytes
    lengths: np.ndarray
    inside: bool
    open: bool
    empty: int
    largest: int
    seen: tuple[LinesSeen, ...]
    digests: tuple[tuple[int, str], ...]


def encoding(
    tokenizer: bytes | None,
    field: str = "text",
    eod: str | None = None,
    vocabulary: int | None = None,
    format_: str = "",
) -> Encoding:
    """An encoding with its end-of-document as an id, and the smallest type that the vocabulary fits.

    Raises Failure(64) where the tokenizer has no such token, 65 where the id is beyond the vocabulary.
    """
    opened = open_tokenizer(tokenizer)
    size = vocabulary or opened.vocabulary
    token = None
    if eod is not None and eod.isdecimal():
        token = int(eod)
    elif eod is not None:
        token = opened.id_of(eod)
    if token is not None and token >= size:
        hint = "choose a lower id, or give the model's own --vocabulary"
        raise Failure(Exit.BAD_DATA, f"the end of a document is {token}, the vocabulary has {size}", hint)
    wide = "int32" if format_ == "megatron" else "uint32"  # Megatron's format has no uint32
    return Encoding(tokenizer, field, token, size, "uint16" if size <= 1 << 16 else wide)


def tokenize(task: TokenizeJob, how: Encoding, tokenizer: Tokenizer) -> TokenizedDocuments:
    """Do one task. Raises Failure(65) where a text is no UTF-8 or a token beyond the vocabulary."""
    made = _Made(how, tokenizer)
    seen = tuple(made.add(piece) for piece in task.pieces)
    digests = tuple((number, file_digest(path)) for number, path in task.digests)
    inside = goes_on = False
    if task.pieces:
        inside, goes_on = task.pieces[0].inside, task.pieces[-1].open
    if goes_on:
        made.leave_open()
    return TokenizedDocuments(
        tokens=made.tokens(),
        lengths=np.array(made.lengths, np.int64),
        inside=inside,
        open=goes_on,
        empty=made.empty,
        largest=made.largest,
        seen=seen,
        digests=digests,
    )


class _Part(NamedTuple):
    """A stretch of a document that is encoded at once; `last`: the document, or what a piece has of it, ends there."""

    text: bytes
    last: bool


class _Made:
    """Tokens and lengths of documents while they are made."""

    def __init__(self, how: Encoding, tokenizer: Tokenizer) -> None:
        self.lengths: list[int] = []
        self.empty = 0
        self.largest = -1
        self._how, self._tokenizer = how, tokenizer
        self._end = np.array([] if how.eod is None else [how.eod], how.dtype)
        self._chunks: list[np.ndarray] = []
        self._length = 0  # of the document that is being made

    def add(self, piece: InputPart) -> LinesSeen:
        """Add a piece's documents."""
        texts, bad, lines = documents(piece, self._how.field)
        for batch in _batches(_parts(texts)):
            self._encode(batch, piece)
        return LinesSeen(piece.number, lines, tuple(bad))

    def leave_open(self) -> None:
        """The last document goes on in the next task, which adds the length of its part to this one's."""
        self._end_document(self._length)

    def tokens(self) -> bytes:
        """All tokens, little-endian."""
        tokens = np.concatenate([np.empty(0, self._how.dtype), *self._chunks], dtype=self._how.dtype)
        return tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes()

    def _encode(self, batch: list[_Part], piece: InputPart) -> None:
        try:
            encoded = self._tokenizer.encode([part.text for part in batch])
        except UnicodeDecodeError as error:
            cause = f"{piece.path}: no UTF-8: {error.reason} at byte {error.start} of a part from {piece.start}"
            raise Failure(Exit.BAD_DATA, cause, "convert it to UTF-8, or leave it out", file=piece.path) from None
        for tokens, part in zip(encoded, batch, strict=True):
            if len(tokens):
                self._check(tokens, piece)
                self._chunks.append(tokens.astype(self._how.dtype, copy=False))
                self._length += len(tokens)
            if part.last and not piece.open:
                self._close(begun=piece.inside and not self.lengths)

    def _check(self, tokens: np.ndarray, piece: InputPart) -> None:
        self.largest = max(self.largest, int(tokens.max()))
        if self.largest >= self._how.vocabulary:
            cause = f"{piece.path}: token {self.largest}, the vocabulary has {self._how.vocabulary}"
            raise Failure(Exit.BAD_DATA, cause, "see that --vocabulary fits the tokenizer", file=piece.path)

    def _close(self, *, begun: bool) -> None:
        """End a document. One that `begun` in an earlier piece may have its tokens there, so it is not empty."""
        if not self._length and not begun:
            self.empty += 1
            return
        self._chunks.append(self._end)
        self._end_document(self._length + len(self._end))

    def _end_document(self, length: int) -> None:
        self.lengths.append(length)
        self._length = 0
        if self._how.eod is not None:
            self.largest = max(self.largest, self._how.eod)


def _parts(texts: Sequence[bytes]) -> Iterator[_Part]:
    for text in texts:
        parts = list(parts_of(text))
        for number, part in enumerate(parts, 1):
            yield _Part(part, number == len(parts))


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    batch: list[_Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
