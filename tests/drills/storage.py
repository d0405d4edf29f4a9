"""Storage that fails, under the commit protocol: at every system call, at every bit, at every loss of power, when full.

Each drill counts on a `Scoreboard` what it tried, and says what did not hold. Nothing of this ships.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.commits import Commit, CommitFailure, Committer, clean, names, newest
from drivetrain.checkpoint.manifest import FOLDER
from drivetrain.launch.rundir import prepare
from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes
from states import Ranks, World, committer, cut, laid_out

MEMORY = Path("/dev/shm")
"""Where scratch folders lie that are made by the thousand."""


@dataclass
class Scoreboard:
    """How many trials were made, in how many the promise held, and what was seen in the others."""

    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, trial: str, wrong: str | None) -> None:
        """One more trial; `wrong` says what did not hold."""
        self.tried += 1
        if wrong is None:
            self.held += 1
        else:
            self.failures.append(f"{trial}: {wrong}")


# What is committed, and what must be found again.


_LARGE = 100
"""From this step on states are of several pages."""


def state_of(step: int) -> StateTree:
    """The state of a step: no two steps share a tensor, and one tensor is of several sectors."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "networks/m/w": torch.randn(16 if step < _LARGE else 512, 24, generator=generator),
        "networks/m/b": torch.randn(7, generator=generator).to(torch.bfloat16),
        "optimizers/m/w/step": torch.tensor(float(step)),
    }
    return StateTree(tensors, {"step": step, "order": [n * step for n in range(200)]})


def same(found: StateTree, expected: StateTree) -> bool:
    """Whether two states have the same bytes."""
    return found.values == expected.values and _bytes(found) == _bytes(expected)


def _bytes(tree: StateTree) -> dict[str, Any]:
    flat = {name: tensor.contiguous().reshape(-1).view(torch.uint8) for name, tensor in tree.tensors.items()}
    return {name: (tree.tensors[name].dtype, tree.tensors[name].shape, flat[name].tolist()) for name in flat}


def commit(writer: Committer | Ranks, step: int) -> Commit | CommitFailure:
    """Commit the state of this step, as one rank or as several."""
    if isinstance(writer, Ranks):
        return writer.save(step, cut(state_of(step), writer.sizes))
    writer.begin(step, state_of(step), {"recipe": "r", "position": 8 * step})
    result = writer.wait()
    assert result is not None
    return result


def judge(run: Path, allowed: Iterable[int | None]) -> str | None:
    """What is wrong with what is found: it must be of one of these steps (None: there is none), with its very bytes."""
    try:
        found = newest(run)
    except Failure as failure:
        return f"Failure {int(failure.outcome.code)}: {failure.outcome.cause}"
    step = found.step if found else None
    if step not in allowed:
        return f"found step {step} instead of {' or '.join(map(str, allowed))}"
    if found and not same(found.state, state_of(found.step)):
        return f"step {step} has other bytes than were committed"
    return None


def go_on(run: Path, step: int = 4) -> str | None:
    """What is wrong with the next holder's start: it takes over, cleans up, and commits a step."""
    with _holding(run) as lease:
        clean(run)
        if left := leftovers(run):
            return f"left after cleaning: {left}"
        result = commit(committer(run, keep=2, lease=lease, _pool=Inline()), step)
    if isinstance(result, CommitFailure):
        return f"the commit after it was missed: {result.cause}"
    return judge(run, [step])


def leftovers(run: Path) -> list[str]:
    """What is in the folder of commits that is none."""
    return sorted(path.name for path in (run / FOLDER).glob(".*") if path.name.startswith((".tmp-", ".trash-")))


def writer_of(run: Path, world: World, **options: Any) -> Committer | Ranks:
    """Who commits, without threads: one rank, or so many, or those of a mesh."""
    options["_pool"] = Inline()
    return committer(run, **options) if laid_out(world).world == 1 else Ranks(run, world, **options)


class Inline:
    """An executor without threads. Which calls come in which order is then the same in every trial."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do it now."""
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """Do it now."""
        return iter([work(*each) for each in zip(*arguments, strict=True)])


@contextmanager
def _holding(run: Path) -> Iterator[Lease]:
    """The lease of a run, without its beats: they would be calls at any moment."""
    lease = Lease.take(run, lambda: names(run))
    lease._ended.set()
    lease._thread.join()
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def _one_thread() -> Iterator[None]:
    with ExitStack() as stack:
        for module in ("commit", "reading"):
            stack.enter_context(mock.patch(f"drivetrain.checkpoint.{module}.ThreadPoolExecutor", Inline))
        yield


# P08, P09, P10, S01, S03: killed or refused at every system call of a commit and its rotation.

CHANGING = (
    *("openat", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "rename", "renameat", "renameat2"),
    *("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir"),
)
"""System calls that change what is on the disk; whichever of them this machine has."""
READING = ("read", "close", "getdents64", "newfstatat", "fstat", "statfs", "fstatfs", "flock", "lseek", "fadvise64")
KILL = "signal=KILL"
ERRORS = ("error=EIO", "error=ENOSPC", "error=EROFS")
_COMMITTED, _MISSED, _BROKEN = 0, 1, 3
_LET_ANY_TRACE = 0x59616D61  # PR_SET_PTRACER


@cache
def untraceable() -> str | None:
    """Why system calls cannot be tampered with here; None where they can."""
    if not shutil.which("strace"):
        return "strace is not installed"
    command = ["strace", "-e", "trace=write", "-e", "inject=write:error=EIO:when=1", "true"]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"strace may not trace here: {probe.stderr.strip()}" if probe.returncode else None


@dataclass(frozen=True)
class Point:
    """The n-th call of a kind, and what befalls it; `on`: and every later one of this kind."""

    kind: str
    n: int
    fault: str
    on: bool = False

    def __str__(self) -> str:
        return f"{self.fault} at {self.kind} number {self.n}{' and later' if self.on else ''}"

    def options(self) -> list[str]:
        """For strace."""
        when = f"when={self.n}{'+' if self.on else ''}"
        return ["-e", f"trace={self.kind}", "-e", f"inject={self.kind}:{self.fault}:{when}"]


def sweep(folder: Path, every: int = 1, seed: int = 0, lasting: bool = False, world: World = 1) -> Scoreboard:
    """Kill and refuse at every call of a commit that removes the oldest, or at a share of 1 in `every` of them.

    `lasting`: also let every later call of the kind be refused, as a disk that stays broken does. `world`: the
    ranks that write, one after the other.
    """
    board = Scoreboard()
    with Trials(folder, world) as trials:
        for point in points(trials.calls(), every, seed, lasting):
            run = folder / "trial"
            reported, log = trials.trial(run, point.options())
            struck = "INJECTED" in log or "killed by SIGKILL" in log
            board.count(str(point), _after(run, point, reported) if struck else "it did not strike")
            shutil.rmtree(run)
    return board


def points(calls: Counter[str], every: int = 1, seed: int = 0, lasting: bool = False) -> list[Point]:
    """Where to strike: each fault at each of so many calls of each kind."""
    found = [
        Point(kind, n + 1, fault, on)
        for kind, count in calls.items()
        # A kill at a call that changes nothing leaves what the kill at the next change leaves.
        for fault in ((KILL, *ERRORS) if kind in CHANGING else ERRORS[:1])
        for n in range(count)
        # No file system refuses to close every folder, and Python's rmtree raises what close() raises.
        for on in ((False, True) if lasting and fault != KILL and kind != "close" else (False,))
    ]
    return sorted(random.Random(seed).sample(found, -(-len(found) // every)), key=found.index)


def _after(run: Path, point: Point, reported: int) -> str | None:
    """What is wrong after a trial that ended like this."""
    if reported not in (_COMMITTED, _MISSED, -9):
        return f"it ended with {reported}"
    left = [name for name in leftovers(run) if name.startswith(".tmp-")]
    if left and point.fault != KILL and not point.on:  # a disk that works again is cleaned at once
        return f"it left {left}"
    return judge(run, [3] if reported == _COMMITTED else [2, 3]) or go_on(run)


class Trials:
    """A process that has torch, and forks a child for every trial: importing takes longer than a trial."""

    def __init__(self, folder: Path, world: World) -> None:
        self._folder = folder
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "drills.storage", json.dumps(asdict(laid_out(world)))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def calls(self) -> Counter[str]:
        """How often an undisturbed commit of step 3 makes each call."""
        kinds = ",".join(f"?{kind}" for kind in (*CHANGING, *READING))
        reported, log = self.trial(self._folder / "undisturbed", ["-e", f"trace={kinds}"])
        assert reported == _COMMITTED, reported
        return Counter(re.findall(r"^(\w+)\(", log, re.MULTILINE))

    def trial(self, run: Path, options: Sequence[str]) -> tuple[int, str]:
        """How a process ends (minus the signal) that has committed steps 1 and 2 and, under strace, commits step 3;
        and what strace wrote."""
        log = self._folder / "calls"
        run.mkdir()
        pid = self._say(str(run))
        command = ["strace", "-o", str(log), *options, "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            line = tracer.stderr.readline()
            assert "attached" in line, line
            reported = self._say("go")
        return reported, log.read_text()

    def _say(self, line: str) -> int:
        """Say a line, and the number that comes back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def serve(world: World) -> None:
    """The other side of `Trials`: for every line a child, its number, and, once told to go, how it ended."""
    for line in iter(sys.stdin.readline, ""):
        ready, hold = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(hold[1])
            os._exit(_child(Path(line.strip()), world, ready[1], hold[0]))
        os.close(ready[1])
        os.read(ready[0], 1)
        print(pid, flush=True)
        sys.stdin.readline()
        for descriptor in (hold[1], hold[0], ready[0]):
            os.close(descriptor)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _child(run: Path, world: World, ready: int, hold: int) -> int:
    """One trial. What it reports is its exit code: a write would be one more call that can be refused."""
    try:
        ctypes.CDLL(None).prctl(_LET_ANY_TRACE, ctypes.c_ulong(-1))
        with _one_thread(), _holding(run) as lease:
            writer = writer_of(run, world, keep=2, lease=lease)
            for step in (1, 2):
                assert isinstance(commit(writer, step), Commit)
            os.write(ready, b".")
            select.select([hold], [], [])  # not a read, which could be what is refused
            os._exit(_COMMITTED if isinstance(commit(writer, 3), Commit) else _MISSED)
    except BaseException:
        traceback.print_exc()
    return _BROKEN


# S06, S07: single bits.


def flips(run: Path, count: int, seed: int = 0) -> Scoreboard:
    """Flip single bits of the newest commit of a run that has two, one after the other; each file has its share."""
    board, generator = Scoreboard(), random.Random(seed)
    last, before = names(run)[:2]
    files = sorted((run / FOLDER / last).iterdir())
    for _ in range(count):
        path = generator.choice(files)
        at, bit = generator.randrange(path.stat().st_size), generator.randrange(8)
        with _flipped(path, at, bit):
            wrong = _not_passed_over(run, last, before, path.name)
        board.count(f"bit {bit} of byte {at} of {path.name}", wrong)
    board.count("all bits restored", judge(run, [int(last.removeprefix("step-"))]))
    return board


@contextmanager
def _flipped(path: Path, at: int, bit: int) -> Iterator[None]:
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit]), at)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), byte, at)


def _not_passed_over(run: Path, last: str, before: str, file: str) -> str | None:
    """What is wrong where a commit must be passed over for one of its files."""
    if wrong := judge(run, [int(before.removeprefix("step-"))]):
        return wrong
    found = newest(run)
    reason = found.passed_over[0] if found and found.passed_over else ""
    named = "manifest" if file.startswith("MANIFEST") else file
    return None if reason.startswith(f"{last}: ") and named in reason else f"the reason given is {reason!r}"


# S14: power loss. The operations of commits are recorded, and every disk is built that a crash among them may leave.

SECTOR = 512
_ROOT = 0
Node = int


@dataclass(frozen=True)
class Entries:
    """Names of a folder are set to a node, or removed (None), all of them or none: creation, removal, or rename."""

    folder: Node
    changes: tuple[tuple[str, Node | None], ...]


@dataclass(frozen=True)
class Write:
    """Bytes are written to a file."""

    file: Node
    offset: int
    data: bytes


@dataclass(frozen=True)
class Sync:
    """What was written to a file, or the entries of a folder, are durable from here on."""

    node: Node


@dataclass(frozen=True)
class Reported:
    """The commit of a step was said to be made."""

    step: int


Op = Entries | Write | Sync | Reported


@dataclass
class Disk:
    """Folders (names to nodes) and files (bytes), by their number."""

    folders: dict[Node, dict[str, Node]] = field(default_factory=lambda: {_ROOT: {}})
    files: dict[Node, bytes] = field(default_factory=dict)

    def copy(self) -> Disk:
        """Another of the same content."""
        return Disk({node: dict(entries) for node, entries in self.folders.items()}, dict(self.files))

    def apply(self, op: Op) -> None:
        """Have an operation take effect."""
        if isinstance(op, Entries):
            for name, node in op.changes:
                if node is None:
                    self.folders[op.folder].pop(name, None)
                else:
                    self.folders[op.folder][name] = node
        elif isinstance(op, Write):
            old = self.files[op.file].ljust(op.offset, b"\0")  # a hole reads as zeros
            self.files[op.file] = old[: op.offset] + op.data + old[op.offset + len(op.data) :]

    def add(self, is_folder: bool) -> Node:
        """A new node, which has no name yet."""
        node = len(self.folders) + len(self.files)
        if is_folder:
            self.folders[node] = {}
        else:
            self.files[node] = b""
        return node

    def find(self, parts: Sequence[str]) -> Node | None:
        """The node at a path."""
        node: Node | None = _ROOT
        for part in parts:
            node = self.folders[node].get(part) if node is not None else None
        return node

    def tree(self, node: Node = _ROOT, at: str = "") -> dict[str, bytes | None]:
        """All that can be reached: bytes by path, None for a folder."""
        found: dict[str, bytes | None] = {}
        for name, child in self.folders[node].items():
            path = f"{at}/{name}" if at else name
            if child in self.files:
                found[path] = self.files[child]
            else:
                found[path] = None
                found |= self.tree(child, path)
        return found


def on_disk(folder: Path) -> dict[str, bytes | None]:
    """The tree that a folder really has."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}


class Recorder:
    """Notes what is done to a folder through `os`, by path and by descriptor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.ops: list[Op] = []
        self.disk = Disk()
        for path, content in on_disk(self.folder).items():
            self._add(self.folder / path, content)
        self.start = self.disk.copy()
        self._real = {name: getattr(os, name) for name in self._replaced()}
        self._open: dict[int, tuple[Node, int]] = {}  # by descriptor: the node, and where the next write goes

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, everything is noted. What went another way shows at the end: the folder is not what was noted."""
        with ExitStack() as stack:
            for name, replacement in self._replaced().items():
                stack.enter_context(mock.patch.object(os, name, replacement))
            yield
        assert self.disk.tree() == on_disk(self.folder), "something was done to the folder that was not recorded"

    def note(self, op: Op) -> None:
        """One more operation."""
        self.ops.append(op)
        self.disk.apply(op)

    def _replaced(self) -> dict[str, Callable[..., Any]]:
        return {
            "open": self._on_open,
            "close": self._on_close,
            "write": self._on_write,
            "fsync": self._on_fsync,
            "mkdir": self._on_mkdir,
            "rename": self._on_rename,
            "unlink": self._on_unlink,
            "rmdir": self._on_rmdir,
        }

    def _add(self, path: Path, content: bytes | None) -> None:
        node = self.disk.add(content is None)
        self.disk.apply(self._named(path, node))
        if content is not None:
            self.disk.files[node] = content

    def _parts(self, path: Any, within: int | None = None) -> tuple[str, ...] | None:
        """A path from the folder on; None where it lies elsewhere."""
        start = os.readlink(f"/proc/self/fd/{within}") if within is not None else os.getcwd()
        whole = Path(start, os.fsdecode(path))
        return whole.relative_to(self.folder).parts if whole.is_relative_to(self.folder) else None

    def _named(self, path: Any, node: Node | None, within: int | None = None) -> Entries:
        parts = self._parts(path, within)
        assert parts, path
        parent = self.disk.find(parts[:-1])
        assert parent is not None, path
        return Entries(parent, ((parts[-1], node),))

    def _on_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        parts = self._parts(path, dir_fd)
        if parts is None:
            return descriptor
        assert not flags & os.O_TRUNC, path
        node = self.disk.find(parts)
        if node is None:
            node = self.disk.add(is_folder=False)
            self.note(self._named(path, node, dir_fd))
        self._open[descriptor] = (node, 0)
        return descriptor

    def _on_close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._real["close"](descriptor)

    def _on_write(self, descriptor: int, data: Any) -> int:
        count = self._real["write"](descriptor, data)
        if descriptor in self._open:
            node, at = self._open[descriptor]
            self.note(Write(node, at, bytes(memoryview(data)[:count])))
            self._open[descriptor] = (node, at + count)
        return count

    def _on_fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        if descriptor in self._open:
            self.note(Sync(self._open[descriptor][0]))

    def _on_mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._real["mkdir"](path, mode)
        if self._parts(path) is not None:
            self.note(self._named(path, self.disk.add(is_folder=True)))

    def _on_rename(self, old: Any, new: Any) -> None:
        self._real["rename"](old, new)
        parts = self._parts(old)
        if parts is not None:
            gone, there = self._named(old, None), self._named(new, self.disk.find(parts))
            assert gone.folder == there.folder, (old, new)
            self.note(Entries(gone.folder, gone.changes + there.changes))

    def _on_unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._real["unlink"](path, dir_fd=dir_fd)
        if self._parts(path, dir_fd) is not None:
            self.note(self._named(path, None, dir_fd))

    def _on_rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._real["rmdir"](path, dir_fd=dir_fd)
        if self._parts(path, dir_fd) is not None:
            self.note(self._named(path, None, dir_fd))


def record(folder: Path, before: Sequence[int], steps: Sequence[int], keep: int = 2, world: World = 1) -> Recorder:
    """The operations of commits of `steps`, by these ranks, in a run whose commits of `before` are durable."""
    folder.mkdir()
    with _one_thread(), _holding(folder) as lease:
        writer = writer_of(folder, world, keep=keep, lease=lease)
        for step in before:
            assert isinstance(commit(writer, step), Commit)
        recorder = Recorder(folder)
        with recorder.recording():
            for step in steps:
                assert isinstance(commit(writer, step), Commit)
                recorder.note(Reported(step))
    return recorder


def crashes(start: Disk, ops: Sequence[Op], limit: int = 1 << 12, seed: int = 0) -> Iterator[Disk]:
    """The disks that a crash right after these operations may leave: any subset of what is not durable yet has
    reached it, and of a write any part. Where there are more than `limit`, so many that a seed chooses."""
    durable = [_is_durable(ops, at) for at in range(len(ops))]
    choices = [[op] if safe else _partial(op) for op, safe in zip(ops, durable, strict=True)]
    if prod(map(len, choices)) <= limit:
        picks: Iterable[Sequence[Op | None]] = product(*choices)
    else:
        generator = random.Random(seed)
        picks = ([generator.choice(each) for each in choices] for _ in range(limit))
    for pick in picks:
        disk = start.copy()
        for op in pick:
            if op is not None:
                disk.apply(op)
        yield disk


def _is_durable(ops: Sequence[Op], at: int) -> bool:
    op = ops[at]
    node = op.file if isinstance(op, Write) else op.folder if isinstance(op, Entries) else None
    return node is None or any(isinstance(later, Sync) and later.node == node for later in ops[at:])


def _partial(op: Op) -> list[Op | None]:
    """What may be left of an operation that is not durable: nothing, all, or (of a write) zeros, or whole sectors of it
    with zeros before or after them, or nothing."""
    if not isinstance(op, Write):
        return [None, op]
    size = len(op.data)
    left = [op.data, bytes(size)]
    for end in range(SECTOR - op.offset % SECTOR, size, SECTOR):
        left += [op.data[:end], op.data[:end].ljust(size, b"\0"), op.data[end:].rjust(size, b"\0")]
    return [None, *(Write(op.file, op.offset, data) for data in left)]


def power_losses(
    folder: Path,
    before: Sequence[int] = (1, 2),
    steps: Sequence[int] = (3,),
    keep: int = 2,
    limit: int = 1 << 12,
    world: World = 1,
) -> Scoreboard:
    """Record commits in a new folder, and judge every disk that a loss of power among them may leave.

    What is tried is counted once for all crashes that leave the same.
    """
    recorder = record(folder, before, steps, keep, world)
    return judge_crashes(recorder.start, recorder.ops, max(before, default=None), limit, 0)


def judge_crashes(start: Disk, ops: Sequence[Op], before: int | None, limit: int, seed: int) -> Scoreboard:
    """Each disk that a crash may leave, once for what may be found on it: the commit that was last said to be made,
    or the one after it."""
    board, seen = Scoreboard(), set()
    steps = [op.step for op in ops if isinstance(op, Reported)]
    start = _new_disk(start, ops)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        for end in range(len(ops) + 1):
            made = [op.step for op in ops[:end] if isinstance(op, Reported)]
            allowed = (made[-1] if made else before, *steps[len(made) : len(made) + 1])
            for disk in crashes(start, ops[:end], limit, seed):
                tree = disk.tree()
                key = (allowed, _digest(tree))
                if key not in seen:
                    seen.add(key)
                    board.count(f"after {end} of {len(ops)} operations", _crashed(Path(scratch, "run"), tree, allowed))
    return board


def _new_disk(start: Disk, ops: Sequence[Op]) -> Disk:
    """The disk at the start, with the nodes that operations will create, which have no names yet."""
    disk = start.copy()
    files = {op.file for op in ops if isinstance(op, Write)}
    for op in ops:
        for _, node in op.changes if isinstance(op, Entries) else ():
            if node is not None and node not in disk.folders and node not in disk.files:
                if node in files:
                    disk.files[node] = b""
                else:
                    disk.folders[node] = {}
    return disk


def _digest(tree: dict[str, bytes | None]) -> bytes:
    return sha256(repr(sorted(tree.items())).encode()).digest()


def _crashed(run: Path, tree: dict[str, bytes | None], allowed: Sequence[int | None]) -> str | None:
    """What is wrong with a run on such a disk."""
    run.mkdir()
    for path, content in tree.items():  # a folder comes before what is in it
        if content is None:
            (run / path).mkdir()
        else:
            (run / path).write_bytes(content)
    wrong = judge(run, allowed) or go_on(run, 9)
    shutil.rmtree(run)
    return f"{wrong}; on the disk: {sorted(tree)}" if wrong else None


# S01, S15: disks that are full. S02: a disk that cannot be written.


@cache
def unmountable() -> str | None:
    """Why file systems cannot be mounted here; None where they can."""
    if os.geteuid() != 0:
        return "only root may mount"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), "size=64k"):
                return None
        except OSError as error:
            return f"mounting is refused: {error}"


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory, mounted on a folder."""
    folder.mkdir(exist_ok=True)
    _mount("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        _mount("umount", "-l", str(folder))


def _mount(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())


def full_disk(folder: Path, limit: str, amount: int) -> Scoreboard:
    """On a file system of that `size` or `nr_inodes`: commit until it refuses, make room, and commit again. Then have
    others fill it between a commit's look at the room and its first write, but for 0, 1, 2, ... pages or inodes."""
    board = Scoreboard()
    with mounted(folder, f"{limit}={amount}"):
        run, ballast = folder / "run", folder / "ballast"
        run.mkdir()
        writer = committer(run, keep=10**6)
        _fill(ballast, limit, _free(folder, limit) // 2)
        last = _LARGE
        while isinstance(result := commit(writer, last), Commit):
            last += 1
        board.count("until it is refused", _refused(run, result, last))
        shutil.rmtree(ballast)
        board.count("after room was made", _accepted(run, commit(writer, last), last))
        fits, writer = True, committer(run, keep=1)
        for left in range(24):
            last += 1 if fits else 0
            with mock.patch("drivetrain.checkpoint.draft.require_space", _taken(ballast, limit, left)):
                result = commit(writer, last)
            fits = isinstance(result, Commit)
            board.count(f"but for {left}", (_accepted if fits else _refused)(run, result, last))
            shutil.rmtree(ballast)
        board.count("with room for all", None if fits else "the commits were all refused")
    return board


def _free(folder: Path, limit: str) -> int:
    """Pages or inodes that are free."""
    room = os.statvfs(folder)
    return room.f_bavail if limit == "size" else room.f_favail


def _fill(ballast: Path, limit: str, count: int) -> None:
    """Take so many pages or inodes."""
    ballast.mkdir()
    if limit == "size":
        (ballast / "0").write_bytes(bytes(count * os.statvfs(ballast).f_frsize))
    for n in range(count - 1 if limit == "nr_inodes" else 0):
        (ballast / str(n)).touch()


def _taken(ballast: Path, limit: str, left: int) -> Callable[..., None]:
    """Stands in for the look at the room: finds enough, and then others take all but so much."""
    return lambda *_: _fill(ballast, limit, _free(ballast.parent, limit) - left)


def _refused(run: Path, result: Commit | CommitFailure, step: int) -> str | None:
    """What is wrong after a commit of this step that was refused for want of room."""
    if not isinstance(result, CommitFailure) or result.code is not Exit.STORAGE:
        return f"it ended with {result}"
    if left := leftovers(run):
        return f"it left {left}"
    return judge(run, [step - 1])


def _accepted(run: Path, result: Commit | CommitFailure, step: int) -> str | None:
    return judge(run, [step]) if isinstance(result, Commit) else f"it was missed: {result.cause}"


def read_only(folder: Path) -> Scoreboard:
    """Start on a file system that cannot be written, in a run directory that is there and in one that is not."""
    board = Scoreboard()
    with mounted(folder, "size=1m"):
        prepare(folder / "old")
        _mount("mount", "-o", "remount,ro", str(folder))
        for name in ("old", "new"):
            try:
                prepare(folder / name)
                code = Exit.DONE
            except Failure as failure:
                code = failure.outcome.code
            board.count(name, None if code is Exit.CANNOT_CREATE else f"it ended with {code}")
    return board


if __name__ == "__main__":
    serve(MeshSizes(**json.loads(sys.argv[1])))
