"""The folder of a token file that is not finished: what was written, and a journal that says how far it counts.

A task counts once its line is in the journal. What was written after the last one is taken away at the next start.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from drivetrain.data.inputs import Input
from drivetrain.data.tokenization import LinesSeen, TokenizedDocuments
from drivetrain.spec.exits import Exit, Failure

TOKENS, LENGTHS, MANIFEST = "tokens.bin", "lengths", "manifest.json"
"""Files of the folder: tokens, lengths of documents (int64, little-endian), and the manifest once all is done."""
_JOURNAL = "journal.jsonl"
_SYNC = 1.0  # seconds of work that may be lost


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


class UnfinishedWork:
    """The folder, held by one process while entered. `stand` is what is finished, `digest` that of its tokens."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], inputs: Sequence[Input], skip_bad: int) -> None:
        """`plan` is what decides the bytes, `skip_bad` how many bad lines are passed over.

        Entering raises Failure(85) where another process holds the folder, 76 where it was begun with another plan, 65
        where it has less than its journal says.
        """
        self.folder, self.stand = folder, Stand()
        self._plan, self._inputs, self._skip_bad = dict(plan), inputs, skip_bad
        self._lines: list[str] = []
        self._synced = time.monotonic()

    def __enter__(self) -> UnfinishedWork:
        with ExitStack() as stack:
            self._journal = stack.enter_context(open_private(self.folder / _JOURNAL))
            try:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                cause = f"another process prepares {self.folder}"
                raise Failure(Exit.OWNED_ELSEWHERE, cause, "wait for it, or choose another name") from None
            self._replay()
            # With a manifest all is written; the tokens may have been moved to their final name already.
            if not (self.folder / MANIFEST).is_file():
                self._tokens = stack.enter_context(open_private(self.folder / TOKENS))
                self._lengths = stack.enter_context(open_private(self.folder / LENGTHS))
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

    def add(self, done: TokenizedDocuments, cost: int) -> None:
        """Append a task's result. Raises Failure(65) where more lines are bad than are allowed."""
        stand, lengths = self.stand, done.lengths.copy()
        bad: list[list[Any]] = []
        for seen in done.seen:
            bad += self._count_lines(seen)
        if done.inside and len(lengths):
            lengths[0] += stand.part
        stand.part = 0
        if done.open:  # its length is written by the task that ends it
            stand.part = int(lengths[-1])
            lengths = lengths[:-1]
        self._tokens.write(done.tokens)
        self._lengths.write(lengths.astype("<i8").tobytes())
        self.digest.update(done.tokens)
        stand.tasks, stand.cost = stand.tasks + 1, stand.cost + cost
        stand.tokens += len(done.tokens) // np.dtype(self._plan["dtype"]).itemsize
        stand.documents, stand.empty = stand.documents + len(lengths), stand.empty + done.empty
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

    def _count_lines(self, seen: LinesSeen) -> list[list[Any]]:
        """Count a piece's lines; its bad ones, each [file, line as the file counts, why]."""
        stand, bad = self.stand, []
        if seen.input != stand.input:
            stand.input, stand.lines = seen.input, 0
        path = self._inputs[seen.input].path
        for one in seen.bad:
            line = stand.lines + one.line + 1
            bad.append([path, line, one.why])
            stand.bad.append(bad[-1])
            if len(stand.bad) > self._skip_bad:
                more = f"; {self._skip_bad} before it were skipped" if self._skip_bad else ""
                hint = "mend the line, name the text's --field, or give a larger --skip-bad"
                raise Failure(Exit.BAD_DATA, f"{path}:{line}: {one.why}{more}", hint, file=path, line=line)
        stand.lines += seen.lines
        return bad

    def _replay(self) -> None:
        """Add up the journal. Its first line is the plan, every other one a task's."""
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
            if not line.endswith(b"\n"):  # killed while it was written
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
        with (self.folder / TOKENS).open("rb") as written:
            while block := written.read(1 << 20):
                self.digest.update(block)


def open_private(path: Path) -> BinaryIO:
    """A private file to read and write, made where it is missing."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b")
