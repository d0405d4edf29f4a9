"""Token files from documents: many processes tokenize, one writes, in order.

What is finished lies in a folder `NAME.preparing`: tokens, lengths of documents, and a journal that says after which
task they stand. A task counts once its line is in the journal, so a killed command goes on after the last one. Output
appears by rename when it is whole, the manifest last.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from drivetrain.data.documents import (
    BadDocument,
    Input,
    InputPart,
    TokenizeJob,
    check_unchanged,
    documents,
    file_digest,
    parts_of,
    tasks_left,
)
from drivetrain.data.indexed import beside, read_manifest, write_megatron, write_own
from drivetrain.data.lifeline import end_with
from drivetrain.data.tokenizers import Tokenizer, open_tokenizer
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder, write_json, write_private

Format = Literal["drivetrain", "megatron"]

_BATCH = 1 << 18  # bytes of text that are encoded at a time: encodings take many times their text
_SYNC = 1.0  # seconds of work that may be lost
_TOKENS, _LENGTHS, _JOURNAL, _INDEX, _TOKENIZER, _MANIFEST = (
    "tokens.bin",
    "lengths",
    "journal.jsonl",
    "index",
    "tokenizer.json",
    "manifest.json",
)


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


@dataclass(frozen=True)
class Preparation:
    """What to write from what. `skip_bad` is how many bad lines are passed over."""

    name: Path
    inputs: tuple[Input, ...]
    encoding: Encoding
    format: Format = "drivetrain"
    skip_bad: int = 0
    workers: int = 1


@dataclass(frozen=True)
class TokenizedDocuments:
    """A task's result. `lengths` are those of its documents, int64; `inside`: the first one began before this task,
    `open`: the last one goes on. `lines` are (input, how many lines, the bad ones), for each piece."""

    tokens: bytes
    lengths: np.ndarray
    inside: bool
    open: bool
    empty: int
    largest: int
    lines: tuple[tuple[int, int, tuple[BadDocument, ...]], ...]
    digests: tuple[tuple[int, str], ...]


@dataclass
class Stand:
    """How far the work is: what the journal's lines add up to. `part` are tokens of a document that goes on."""

    tasks: int = 0
    cost: int = 0
    tokens: int = 0
    documents: int = 0
    part: int = 0
    empty: int = 0
    largest: int = -1
    input: int = 0
    lines: int = 0  # of that input
    bad: list[list[Any]] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)


Report = Callable[[Stand], None]


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
    token = None if eod is None else int(eod) if eod.isdecimal() else opened.id_of(eod)
    if token is not None and token >= size:
        hint = "choose a lower id, or give the model's own --vocabulary"
        raise Failure(Exit.BAD_DATA, f"the end of a document is {token}, the vocabulary has {size}", hint)
    wide = "int32" if format_ == "megatron" else "uint32"  # Megatron's format has no uint32
    return Encoding(tokenizer, field, token, size, "uint16" if size <= 1 << 16 else wide)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def prepare(asked: Preparation, report: Report = lambda stand: None) -> dict[str, Any]:
    """Write the token file, or go on where a killed command was; returns its manifest.

    The bytes depend on the inputs and the encoding alone. Raises Failure(65) where an input is malformed, a token is
    beyond the vocabulary or nothing is left, 73 where another file has the name, 76 where unfinished work of that name
    is of other inputs or settings, 85 where another process is at it.
    """
    plan = _plan(asked)
    folder = beside(asked.name, ".preparing")
    if ready := _ready(asked.name, folder, plan):
        return ready
    try:
        asked.name.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder}: {error.strerror}", "choose another place for --to") from error
    try:
        with _Work(folder, plan) as work:
            if not (folder / _MANIFEST).is_file():
                _tokenize(asked, work, report)
                _finish(asked, work, folder, plan)
            _publish(asked.name, folder)
    except OSError as error:
        raise Failure(Exit.STORAGE, f"{folder}: {error}", "the same command goes on from there") from error
    return read_manifest(asked.name)


def tokenize(task: TokenizeJob, how: Encoding, tokenizer: Tokenizer) -> TokenizedDocuments:
    """Do one task. Raises Failure(65) where a text is no UTF-8 or a token beyond the vocabulary."""
    made = _Made(how, tokenizer)
    lines = [(piece.number, *made.add(piece)) for piece in task.pieces]
    digests = tuple((number, file_digest(path)) for number, path in task.digests)
    inside = bool(task.pieces) and task.pieces[0].inside
    goes_on = bool(task.pieces) and task.pieces[-1].open
    return made.done(inside, goes_on, tuple(lines), digests)


class _Made:
    """Tokens and lengths of documents while they are made."""

    def __init__(self, how: Encoding, tokenizer: Tokenizer) -> None:
        self._how, self._tokenizer = how, tokenizer
        self._end = np.array([] if how.eod is None else [how.eod], how.dtype)
        self._chunks: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._length = self._empty = 0
        self._largest = -1

    def add(self, piece: InputPart) -> tuple[int, tuple[BadDocument, ...]]:
        """Add a piece's documents; its number of lines, and the bad ones."""
        texts, bad, lines = documents(piece, self._how.field)
        parts = [(part, last) for text in texts for part, last in _marked(parts_of(text))]
        for batch in _batches(parts):
            self._encode(batch, piece)
        return lines, tuple(bad)

    def _encode(self, batch: list[tuple[bytes, bool]], piece: InputPart) -> None:
        try:
            encoded = self._tokenizer.encode([text for text, _ in batch])
        except UnicodeDecodeError as error:
            cause = f"{piece.path}: no UTF-8: {error.reason} at byte {error.start} of a part from {piece.start}"
            raise Failure(Exit.BAD_DATA, cause, "convert it to UTF-8, or leave it out", file=piece.path) from None
        for tokens, (_, last) in zip(encoded, batch, strict=True):
            if len(tokens):
                self._check(tokens, piece)
                self._chunks.append(tokens.astype(self._how.dtype, copy=False))
                self._length += len(tokens)
            if last and not piece.open:
                self._close(piece.inside and not self._lengths)

    def _check(self, tokens: np.ndarray, piece: InputPart) -> None:
        self._largest = max(self._largest, int(tokens.max()))
        if self._largest >= self._how.vocabulary:
            cause = f"{piece.path}: token {self._largest}, the vocabulary has {self._how.vocabulary}"
            raise Failure(Exit.BAD_DATA, cause, "see that --vocabulary fits the tokenizer", file=piece.path)

    def _close(self, begun: bool) -> None:
        if not self._length and not begun:
            self._empty += 1
            return
        self._chunks.append(self._end)
        self._lengths.append(self._length + len(self._end))
        self._length = 0

    def done(
        self, inside: bool, goes_on: bool, lines: tuple[Any, ...], digests: tuple[tuple[int, str], ...]
    ) -> TokenizedDocuments:
        """The result; the last length is that of a part where a document goes on."""
        lengths = np.array([*self._lengths, *([self._length] if goes_on else [])], np.int64)
        largest = max(self._largest, self._how.eod if self._how.eod is not None and len(lengths) else -1)
        tokens = np.concatenate([np.empty(0, self._how.dtype), *self._chunks], dtype=self._how.dtype)
        little = tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes()
        return TokenizedDocuments(little, lengths, inside, goes_on, self._empty, largest, lines, digests)


def _marked(parts: Any) -> Iterator[tuple[bytes, bool]]:
    """Parts of one document, each with whether it is the last."""
    parts = list(parts)
    for number, part in enumerate(parts, 1):
        yield part, number == len(parts)


def _batches(parts: list[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    batch: list[tuple[bytes, bool]] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Work:
    """The folder of unfinished work, held by one process. `stand` is what is finished."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.folder, self.stand = folder, Stand()
        self._plan = dict(plan)
        self._lines: list[str] = []
        self._synced = time.monotonic()

    def __enter__(self) -> _Work:
        with ExitStack() as stack:
            self._journal = stack.enter_context(_open(self.folder / _JOURNAL))
            try:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                cause = f"another process prepares {self.folder}"
                raise Failure(Exit.OWNED_ELSEWHERE, cause, "wait for it, or choose another name") from None
            self._replay()
            if not (self.folder / _MANIFEST).is_file():
                self._tokens = stack.enter_context(_open(self.folder / _TOKENS))
                self._lengths = stack.enter_context(_open(self.folder / _LENGTHS))
                self._cut()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Make what was added durable at the end, also after a failure: the next start goes on from there."""
        try:
            yield
        except OSError:
            raise
        except BaseException:
            self.sync()
            raise
        self.sync()

    def add(self, done: TokenizedDocuments, cost: int, asked: Preparation) -> None:
        """Append a task's result. Raises Failure(65) where more lines are bad than are allowed."""
        stand, lengths = self.stand, done.lengths.copy()
        bad = self._count_lines(done, asked)
        if done.inside and len(lengths):
            lengths[0] += stand.part
        part = int(lengths[-1]) if done.open else 0
        whole = lengths[:-1] if done.open else lengths
        self._tokens.write(done.tokens)
        self._lengths.write(whole.astype("<i8").tobytes())
        self.digest.update(done.tokens)
        stand.tasks, stand.cost, stand.part = stand.tasks + 1, stand.cost + cost, part
        stand.tokens += len(done.tokens) // np.dtype(self._plan["dtype"]).itemsize
        stand.documents, stand.empty = stand.documents + len(whole), stand.empty + done.empty
        stand.largest = max(stand.largest, done.largest)
        stand.digests |= dict(done.digests)
        news = vars(stand) | {"bad": bad, "digests": done.digests}  # of these two, what is new
        self._lines.append(json.dumps(news) + "\n")
        if time.monotonic() > self._synced + _SYNC:
            self.sync()

    def sync(self) -> None:
        """Make all tasks up to here durable: first what they wrote, then that they did."""
        for file in (self._tokens, self._lengths):
            file.flush()
            os.fsync(file.fileno())
        self._journal.write("".join(self._lines).encode())
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._lines, self._synced = [], time.monotonic()

    def _count_lines(self, done: TokenizedDocuments, asked: Preparation) -> list[list[Any]]:
        """Lines as the file counts them. The bad ones of this task, each [file, line, why]."""
        stand, bad = self.stand, []
        for number, count, found in done.lines:
            if number != stand.input:
                stand.input, stand.lines = number, 0
            for one in found:
                bad.append([asked.inputs[number].path, stand.lines + one.line + 1, one.why])
                stand.bad.append(bad[-1])
                if len(stand.bad) > asked.skip_bad:
                    path, line, why = bad[-1]
                    more = f"; {asked.skip_bad} before it were skipped" if asked.skip_bad else ""
                    hint = "mend the line, name the text's --field, or give a larger --skip-bad"
                    raise Failure(Exit.BAD_DATA, f"{path}:{line}: {why}{more}", hint, file=path, line=line)
            stand.lines += count
        return bad

    def _replay(self) -> None:
        self._journal.seek(0)
        begun, more = self._journal.readline(), self._journal.readline()
        if not more.endswith(b"\n"):  # no task is finished: nothing to lose
            self._journal.seek(0)
            self._journal.truncate()
            self._journal.write(json.dumps(self._plan).encode() + b"\n")
            return
        if json.loads(begun) != self._plan:
            what = [key for key, value in json.loads(begun).items() if self._plan.get(key) != value]
            hint = f"go on with the same command, or remove {self.folder} to begin anew"
            raise Failure(Exit.INCOMPATIBLE, f"{self.folder} was begun with other {', '.join(what)}", hint)
        end = self._journal.seek(len(begun))
        bad: list[list[Any]] = []
        digests: dict[int, str] = {}
        for line in self._journal:
            if not line.endswith(b"\n"):
                break
            news = json.loads(line)
            bad += news["bad"]
            digests.update(news["digests"])
            self.stand = Stand(**(news | {"bad": bad, "digests": digests}))
            end += len(line)
        self._journal.truncate(end)
        self._journal.seek(end)

    def _cut(self) -> None:
        """Take away what was written after the last task in the journal, and take the digest of the rest again."""
        width = np.dtype(self._plan["dtype"]).itemsize
        for file, size in ((self._tokens, self.stand.tokens * width), (self._lengths, self.stand.documents * 8)):
            if os.fstat(file.fileno()).st_size < size:
                hint = f"remove {self.folder} to begin anew"
                raise Failure(Exit.BAD_DATA, f"{self.folder}: less was kept than its journal says", hint)
            file.truncate(size)
            file.seek(size)
        self.digest = hashlib.sha256()
        with (self.folder / _TOKENS).open("rb") as written:
            while block := written.read(1 << 20):
                self.digest.update(block)


@contextmanager
def _pool(asked: Preparation) -> Iterator[Callable[[TokenizeJob], Future[TokenizedDocuments]]]:
    """Something that does tasks: this process alone, or several."""
    how = asked.encoding
    if asked.workers <= 1:
        tokenizer = open_tokenizer(how.tokenizer)

        def at_once(task: TokenizeJob) -> Future[TokenizedDocuments]:
            future: Future[TokenizedDocuments] = Future()
            future.set_result(tokenize(task, how, tokenizer))
            return future

        yield at_once
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["drivetrain.data.prepare"])
    pool = ProcessPoolExecutor(asked.workers, context, initializer=_open_worker, initargs=(how, os.getpid()))
    try:
        yield lambda task: pool.submit(_work, task)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _tokenize(asked: Preparation, work: _Work, report: Report) -> None:
    """Do what is left, at most a few tasks ahead of what is written."""
    stand = work.stand
    left = tasks_left(asked.inputs, asked.encoding.field, stand.tasks, (stand.input, stand.lines))
    ahead: deque[tuple[int, Future[TokenizedDocuments]]] = deque()
    report(work.stand)
    with work.kept(), _pool(asked) as submit:
        while True:
            for task in islice(left, 2 * asked.workers - len(ahead)):
                ahead.append((task.cost, submit(task)))  # not the task, which may hold data
            if not ahead:
                break
            cost, future = ahead.popleft()
            try:
                work.add(future.result(), cost, asked)
            except BrokenProcessPool as error:
                hint = "look for a killed process (memory?); the same command goes on, fewer --workers take less"
                raise Failure(Exit.INTERNAL, "a worker died", hint) from error
            report(work.stand)


_how: Encoding  # of a worker process
_tokenizer: Tokenizer


def _open_worker(how: Encoding, command: int) -> None:
    global _how, _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(command)
    _how, _tokenizer = how, open_tokenizer(how.tokenizer)


def _work(task: TokenizeJob) -> TokenizedDocuments:
    return tokenize(task, _how, _tokenizer)


def _plan(asked: Preparation) -> dict[str, Any]:
    """What decides the bytes."""
    how = asked.encoding
    return {
        "version": 1,
        "tokenizer": open_tokenizer(how.tokenizer).digest,
        "vocabulary": how.vocabulary,
        "field": how.field,
        "eod": how.eod,
        "dtype": how.dtype,
        "format": asked.format,
        "inputs": _identity(asked.inputs),
    }


def _identity(inputs: tuple[Input, ...]) -> str:
    digest = hashlib.sha256()
    for source in inputs:
        digest.update(json.dumps(source.identity).encode())
    return digest.hexdigest()


def _finish(asked: Preparation, work: _Work, folder: Path, plan: dict[str, Any]) -> None:
    """Write index, tokenizer and manifest beside the tokens. Raises Failure(65) where there are none."""
    stand, how = work.stand, asked.encoding
    check_unchanged(asked.inputs)
    if not stand.tokens:
        cause = f"{len(asked.inputs)} files, {stand.empty} empty documents, {len(stand.bad)} bad lines: not one token"
        raise Failure(Exit.BAD_DATA, cause, "look at the inputs and at --field")
    with _open(folder / _INDEX) as file:
        file.truncate(0)
        (write_megatron if asked.format == "megatron" else write_own)(folder / _LENGTHS, how.dtype, file)
        file.flush()
        os.fsync(file.fileno())
    if how.tokenizer is not None:
        write_private(folder / _TOKENIZER, how.tokenizer)
    names = {_TOKENS: work.digest.hexdigest(), _INDEX: file_digest(folder / _INDEX)}
    names |= {} if how.tokenizer is None else {_TOKENIZER: plan["tokenizer"]}
    files = {
        _suffixes(asked.format)[name]: {"size": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in names.items()
    }
    inputs = [_record(source, stand.digests.get(number)) for number, source in enumerate(asked.inputs)]
    bad = [{"file": path, "line": line, "why": why} for path, line, why in stand.bad]
    counts = {"tokens": stand.tokens, "documents": stand.documents, "empty": stand.empty, "largest": stand.largest}
    manifest = {"prepared": 1, **counts, **plan, "plan": plan["inputs"], "files": files, "inputs": inputs, "bad": bad}
    write_json(folder / _MANIFEST, manifest)


def _record(source: Input, digest: str | None) -> dict[str, Any]:
    """An input in the manifest."""
    if source.hub:
        return {"path": source.path, **source.hub.record}
    held = {"changed_ns": source.changed} if digest is None else {"sha256": digest}
    return {"path": source.path, "size": source.size, **held}


def _suffixes(format_: str) -> dict[str, str]:
    """What each file in the folder becomes, the manifest last."""
    index = ".idx" if format_ == "megatron" else ".documents"
    return {_TOKENS: ".bin", _INDEX: index, _TOKENIZER: ".tokenizer.json", _MANIFEST: ".json"}


def _publish(name: Path, folder: Path) -> None:
    """Move what is whole to its names. A command that was killed while it did this does the rest."""
    format_ = json.loads((folder / _MANIFEST).read_text())["format"]
    for inner, suffix in _suffixes(format_).items():
        if (folder / inner).exists():
            os.replace(folder / inner, beside(name, suffix))
    sync_folder(name.absolute().parent)
    shutil.rmtree(folder)


def _ready(name: Path, folder: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest where this very file is there already. Raises Failure(73) where another one is."""
    if folder.is_dir() and (folder / _MANIFEST).is_file():
        return None  # killed between renames
    taken = [suffix for suffix in (*_suffixes("").values(), ".idx") if beside(name, suffix).exists()]
    if not taken:
        return None
    if ".json" in taken:
        manifest = read_manifest(name)
        if {**manifest, "inputs": manifest.get("plan")}.items() >= plan.items():
            shutil.rmtree(folder, ignore_errors=True)  # killed after the last rename
            return manifest
    cause = f"{beside(name, taken[0])} is there already, from other inputs or settings"
    raise Failure(Exit.CANNOT_CREATE, cause, "choose another name, or remove it")


def _open(path: Path) -> BinaryIO:
    """A private file to read and write, made where it is missing."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b")
