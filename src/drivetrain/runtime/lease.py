"""Who owns a run directory: one holder at a time, told apart by growing epochs. Imports no torch.

Every takeover creates `lease/<epoch>.json` and lists the commits it found. A commit of an older epoch that the next
takeover does not list was made by a holder that had lost the directory, and does not count. A holder is alive while
the counter in `lease/<epoch>.beat` moves, whatever host it is on; on this one the kernel also tells at once that it
is dead, by the lock that it held.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder, within

BEAT = 0.4
"""Seconds between two beats of a holder."""
PATIENCE = 10.0
"""Seconds without a beat after which a holder that cannot be asked counts as dead."""
_NAME = re.compile(r"(\d{8})\.json")
_RELEASED = "released"
_RELEASE = 5.0  # seconds that giving back may take
_POLL = 0.05
Clock = Callable[[], float]
Sleep = Callable[[float], None]


@dataclass(frozen=True)
class Takeover:
    """One holder's start: its epoch, the commits that it found, and where it runs.

    `found` is None where that cannot be read: a holder that was cut off while it took over has committed nothing.
    """

    epoch: int
    found: tuple[str, ...] | None
    host: str = "?"
    pid: int = 0
    boot: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def takeovers(run: Path) -> list[Takeover]:
    """All takeovers that are still kept, oldest first."""
    folder = run / "lease"
    if not folder.is_dir():
        return []
    return [_read(folder / name) for name in sorted(os.listdir(folder)) if _NAME.fullmatch(name)]


def fenced(history: Sequence[Takeover], name: str, epoch: int) -> bool:
    """Whether a commit of this epoch was made after its maker had lost the directory: the next takeover did not list
    it."""
    for takeover in history:
        # Only the next one is asked: those after it also list what the old holder published too late.
        if takeover.epoch > epoch and takeover.found is not None:
            return name not in takeover.found
    return False


def require_free(run: Path, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> int | None:
    """Return once nobody owns the directory; Failure(85) as soon as the holder is seen alive.

    The answer is the epoch of a last holder that may still be there: stopped, or cut off, and not known to be dead.
    """
    history = takeovers(run)
    if not history:
        return None
    holder = history[-1]
    beat, file = run / "lease" / f"{holder.epoch:08d}.beat", run / "lease" / f"{holder.epoch:08d}.json"
    first, end = _counter(beat), clock() + PATIENCE
    while True:
        # A lock tells of processes of this kernel alone: on another host it may be free though its holder lives.
        if _counter(beat) == _RELEASED or (holder.boot == _boot() and _unlocked(file)):
            return None
        if _counter(beat) != first:
            raise Failure(
                Exit.OWNED_ELSEWHERE,
                f"{run} belongs to a run that is alive: {holder}",
                "wait for it, stop it, or choose another --run",
            )
        if clock() >= end:
            return holder.epoch
        sleep(_POLL)


def alive(run: Path) -> bool:
    """Whether a run that holds the directory is seen alive; it takes up to `PATIENCE` seconds to see that none is."""
    try:
        require_free(run)
    except Failure:
        return True
    return False


@dataclass(frozen=True)
class HolderSign:
    """What the newest holder of a directory shows to others: it is alive while `counter` moves."""

    holder: Takeover
    counter: str
    moved: float
    """When the counter was written, Unix time by the clock of the directory's machine."""

    @property
    def released(self) -> bool:
        """Whether it gave the directory back."""
        return self.counter == _RELEASED

    @property
    def died_here(self) -> bool:
        """Whether it ran on this machine, where no such process is left."""
        here = self.holder.boot == _boot() and self.holder.host == socket.gethostname()
        return here and not os.path.exists(f"/proc/{self.holder.pid}")


def holder_sign(run: Path) -> HolderSign | None:
    """The sign of the newest holder; None where nobody ever held the directory.

    It only reads, and may be asked often. `require_free` tries the holder's lock: one that starts at that very moment
    would find it taken.
    """
    folder = run / "lease"
    try:
        newest = max((name for name in os.listdir(folder) if _NAME.fullmatch(name)), default=None)
    except OSError:
        return None
    if newest is None:
        return None
    beat, moved = (folder / newest).with_suffix(".beat"), 0.0
    with suppress(OSError):
        moved = beat.stat().st_mtime
    return HolderSign(_read(folder / newest), _counter(beat), moved)


def taken_over(run: Path) -> Failure:
    """What a holder is told that has lost the directory."""
    return Failure(
        Exit.OWNED_ELSEWHERE,
        f"another run has taken over {run}",
        "this one was stopped or cut off for too long; nothing of it counts from there on",
    )


class Lease:
    """The directory is ours until another takes it over. While it lives, a thread beats."""

    def __init__(self, folder: Path, epoch: int, descriptor: int, inherited: bool) -> None:
        self.epoch = epoch
        self.inherited = inherited
        """Whether the holder before may still be alive: it must not find the files that it has open."""
        self._folder = folder
        self._descriptor = descriptor
        self._own = folder / f"{epoch:08d}.json"
        self._next = folder / f"{epoch + 1:08d}.json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="lease", daemon=True)

    @classmethod
    def take(
        cls,
        run: Path,
        commits: Callable[[], Sequence[str]],
        silent: int | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> Lease:
        """Take the directory over, or Failure(85) where its holder is alive. `commits` lists those that are there;
        `silent` is the epoch of a holder that has been waited for already."""
        latest = _latest(run)
        doubtful = (silent is not None and latest == silent) or require_free(run, clock, sleep) is not None
        folder = run / "lease"
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(run)
        with _exclusive(folder, clock, sleep):
            # What was waited for above may have been taken over by somebody else meanwhile.
            if _latest(run) != latest:
                cause = f"{run} was taken over by another run at this moment"
                raise Failure(Exit.OWNED_ELSEWHERE, cause, "choose another --run for one of them")
            epoch = latest + 1
            me = Takeover(epoch, tuple(commits()), socket.gethostname(), os.getpid(), _boot())
            path = folder / f"{epoch:08d}.json"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            # The wait for the critical section is bounded, so two may be in it: O_EXCL lets one of them make the epoch.
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileExistsError:
                cause = f"{run} was taken over by another run at this moment"
                raise Failure(Exit.OWNED_ELSEWHERE, cause, "choose another --run for one of them") from None
            with suppress(OSError):  # a file system without locks: then only the counter tells
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            line = json.dumps(me.__dict__).encode()
            os.write(descriptor, line + b"\n" + sha256(line).hexdigest().encode() + b"\n")
            # The list of commits decides for ever which ones of the old epoch count, so it is durable before we write.
            os.fsync(descriptor)
            sync_folder(folder)
        lease = cls(folder, epoch, descriptor, doubtful)
        lease._beat("0")
        lease._thread.start()
        return lease

    @property
    def lost(self) -> bool:
        """Whether another has taken over: the next one's file is there, or ours was pruned by one after it."""
        return self._next.exists() or (not self._own.exists() and self._folder.exists())

    def require(self) -> None:
        """Raises Failure(85) where another has taken over."""
        if self.lost:
            raise taken_over(self._folder.parent)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Nobody takes over meanwhile; Failure(85) where it has happened, 74 where nobody could tell any more."""
        if not self._folder.is_dir():
            # Another run would begin at the epochs that were there, so that neither would know of the other.
            cause = f"{self._folder} was removed while the run trained: it says whose the directory is"
            hint = "the commit before is whole, and the same command makes the folder anew; see who removed it"
            raise Failure(Exit.STORAGE, cause, hint, gone=self._folder.name)
        with _exclusive(self._folder, time.monotonic, time.sleep):
            self.require()
            yield

    def prune(self, oldest: int) -> None:
        """Forget takeovers that no commit needs any more: those before epoch `oldest`."""
        for name in os.listdir(self._folder):
            number = name.partition(".")[0]
            if number.isdigit() and int(number) < min(oldest, self.epoch):
                with suppress(OSError):
                    (self._folder / name).unlink()

    def release(self) -> None:
        """Give the directory back; where it stalls, the end of this process does."""
        self._ended.set()
        with suppress(OSError):
            within(_RELEASE, self._give_back)

    def _give_back(self) -> None:
        self._thread.join()
        with suppress(OSError):
            if not self.lost:
                self._beat(_RELEASED)
        os.close(self._descriptor)

    def _keep_beating(self) -> None:
        beats = 0
        while not self._ended.wait(BEAT):
            beats += 1
            with suppress(OSError):  # a disk that fails shows at the next commit
                self._beat(str(beats))

    def _beat(self, text: str) -> None:
        """Write and close: on a network file system closing is what shows it to others."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder / f"{self.epoch:08d}.beat", flags, 0o600)
        try:
            os.pwrite(descriptor, text.ljust(16).encode(), 0)
        finally:
            os.close(descriptor)


@contextmanager
def _exclusive(folder: Path, clock: Clock, sleep: Sleep) -> Iterator[None]:
    """The critical section of takeovers and publications. The wait is bounded: a holder that was stopped inside must
    not stop everybody, and what it publishes later is fenced off."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / "lock", flags, 0o600)
    try:
        end = clock() + PATIENCE
        while not _locked(descriptor) and clock() < end:
            sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True


def _unlocked(path: Path) -> bool:
    """Whether nobody has the lock of a takeover's file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> Takeover:
    try:
        line, seal, _ = path.read_bytes().split(b"\n")
        if sha256(line).hexdigest().encode() != seal:
            raise ValueError("damaged")
        told: Mapping[str, Any] = json.loads(line)
        return Takeover(int(path.stem), tuple(told["found"]), told["host"], told["pid"], told["boot"])
    except (OSError, ValueError, KeyError, TypeError):
        return Takeover(int(path.stem), None)


def _latest(run: Path) -> int:
    """The newest epoch; 0 before the first."""
    return max((takeover.epoch for takeover in takeovers(run)), default=0)


def _counter(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _boot() -> str:
    """What tells one running kernel from every other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
