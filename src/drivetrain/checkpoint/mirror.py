"""A copy of commits and ledger in an object store, so that a machine which lost its disk can go on.

Under the URL lie `checkpoints/<commit>/<file>`, with `MANIFEST.json` last: a commit without it is not there. The
sources that the run keeps lie in `code/<SHA-256>`. The ledger lies in segments of whole records,
`ledger/<root>/<start>-<end>-<previous>-<last>.jsonl`: byte offsets, and the chain hashes before and at their end. The
names alone say which segments continue each other and which the local ledger contains; where it lost records that the
mirror has, a new branch starts at the last segment they share.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from drivetrain.checkpoint.files import create, discard, make_folder, remove, rename, require_space
from drivetrain.checkpoint.manifest import FOLDER, LONGEST, MANIFEST, Damaged, name_of
from drivetrain.checkpoint.mirrored_code import fetch_code, push_code
from drivetrain.checkpoint.mirrored_commit import (
    LocalCommit,
    Share,
    by_step,
    commits_in,
    files_of,
    retire,
    wait_for_commit,
    whole,
)
from drivetrain.checkpoint.mirrored_ledger import LEDGER, Segment, fetch_ledger, push_ledger, root_of, segments_in
from drivetrain.checkpoint.store import (
    BLOCK,
    ObjectStore,
    Stored,
    Unavailable,
    Unfit,
    check_url,
)
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import own_name, sync_folder
from drivetrain.spec.secrets import error_without_secrets


class Mirror:
    """Uploads on a thread of its own. What goes wrong there is told by `notes` and never raised in training.

    One run to a URL: a mirror that holds another run's commits is left as it is.
    """

    def __init__(
        self,
        url: str,
        run: Path,
        written: Callable[[], None] = lambda: None,
        *,
        place: tuple[int, int] = (0, 1),
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Nothing is reached yet; `written` returns once the ledger's file has all records so far. `place` is this rank
        among those that upload. Raises Failure(78) where the URL cannot be meant, or obstore is not installed."""
        check_url(url)
        self._url = url
        self._run = run
        self._written = written
        self._changed = threading.Condition()
        # One place and no queue: an older commit is worth nothing once there is a newer one, and uploads must not fall
        # behind.
        self._queued: str | None = None
        self._closing = False
        self._abandoned = threading.Event()
        self._sleep = sleep or self._abandoned.wait
        self._share = Share(*place, self._sleep)
        # Bounded: a store that stays away for days must not fill the memory with the same line.
        self._said: deque[str] = deque(maxlen=100)
        self._code_there: set[str] = set()  # SHA-256 of sources that the mirror has
        # A daemon: a request that hangs in the network must not keep an ended run.
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def push(self, name: str) -> None:
        """Queue the verified commit `name`, in place of one that is queued and not begun; returns at once."""
        with self._changed:
            self._queued = name
            self._changed.notify_all()

    def notes(self) -> list[str]:
        """What happened since the last call, each in one line."""
        with self._changed:
            said = list(self._said)
            self._said.clear()
        return said

    def close(self, patience: float) -> None:
        """Finish what is begun and queued within `patience` seconds, then give up, with a note."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._abandoned.set()  # ends waits, and the next request is not made
            self._note(f"mirror: gave up after {patience:g} s, the last commit may not be there")

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued is not None or self._closing)
                name, self._queued = self._queued, None
            if name is None:
                return
            try:
                self._mirror(name)
            except (Unavailable, Unfit, OSError) as error:
                self._note(f"mirror: cannot upload {name}: {error}, tried again with the next commit")
            except BaseException as error:  # a panic in obstore is no Exception; the thread has to outlive it
                self._note(
                    f"mirror: cannot upload {name}: {error_without_secrets(error)}, tried again with the next commit"
                )

    def _note(self, text: str) -> None:
        with self._changed:
            self._said.append(text)

    def _mirror(self, name: str) -> None:
        """Sources, ledger, files, manifest, then what is no longer kept; on other ranks than 0 its files alone."""
        began = time.monotonic()
        self._written()  # the ledger goes along, with the record of this commit
        leads = self._share.rank == 0
        if not leads:  # which alone knows when it is there
            wait_for_commit(self._run / FOLDER / name, self._share, self._abandoned.is_set)
        with ExitStack() as stack:
            # Opened before the store is asked: rotation may remove the commit meanwhile, and open files stay readable.
            commit = LocalCommit(self._run / FOLDER / name, self._share, stack)
            store = ObjectStore(self._url, self._sleep, self._abandoned, create=True)
            commits = commits_in(store)
            segments = segments_in(store)
            self._refuse_others(store, commits, segments)
            if leads:
                self._push_history(store, segments)
            commit.push(store, commits.get(name, {}))
        self._note(f"mirrored {name} in {time.monotonic() - began:.1f} s")
        try:
            if leads:
                retire(store, commits, name, self._run / FOLDER)
        except (Unavailable, OSError) as error:
            self._note(f"mirror: cannot remove old commits: {error}, tried again with the next commit")

    def _push_history(self, store: ObjectStore, segments: Collection[Segment]) -> None:
        """Sources and ledger."""
        push_code(store, self._run, self._code_there)
        try:
            push_ledger(store, self._run / LEDGER, segments)
        except Unfit as damage:  # the commit is worth having all the same
            self._note(f"mirror: {damage}; later records are not uploaded")

    def _refuse_others(
        self, store: ObjectStore, commits: Mapping[str, Mapping[str, Stored]], segments: Collection[Segment]
    ) -> None:
        """Raises Unfit where the mirror holds commits of another run: rotation would remove them."""
        # A ledger of the same root is this run's, whatever became of the commits.
        if not segments or root_of(self._run / LEDGER) in {segment.root for segment in segments}:
            return
        there = whole(commits)
        if there and not any(self._shared(store, name, files[MANIFEST]) for name, files in there.items()):
            raise Unfit("the URL holds commits of another run; name another one in checkpoint.mirror, or empty it")

    def _shared(self, store: ObjectStore, name: str, manifest: Stored) -> bool:
        """Whether a commit is the same here and in the mirror."""
        local = self._run / FOLDER / name / MANIFEST
        with suppress(FileNotFoundError):
            return manifest.size <= LONGEST and local.read_bytes() == store.read(
                f"{FOLDER}/{name}/{MANIFEST}", 0, manifest.size
            )
        return False


def fetch(
    url: str,
    run: Path,
    passed_over: list[str] | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> str | None:
    """Bring the mirror's newest commit that verifies, the ledger and sources into `run`; the commit's name, or None.

    None means that the store answered and holds no whole commit. Reasons why newer commits, or parts of the others,
    were not taken are appended to `passed_over`. A ledger that is there already is replaced only by a continuation of
    it. Raises Failure(86) where no commit verifies, 74 where the store or the disk fails, 78 as `Mirror` does.
    """
    check_url(url)
    reasons: list[str] = [] if passed_over is None else passed_over
    # Beside its final place, so that the rename stays on one file system.
    temporary = run / FOLDER / f".tmp-fetch-{own_name()}"
    try:
        store = ObjectStore(url, sleep)
        commits = whole(commits_in(store))
        if not commits:
            return None
        discard(temporary)
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_folder(temporary)
        name = _fetch_commit(store, temporary, commits, reasons)
        fetch_code(store, run, reasons)
        fetch_ledger(store, temporary / LEDGER, run / LEDGER, reasons)
        _publish(temporary / name, run / FOLDER / name)  # last: a start that finds it does not look here again
    except Unavailable as error:
        hint = "it may hold this run's commits: see that it can be reached, or take checkpoint.mirror out"
        raise Failure(Exit.STORAGE, f"the mirror cannot be read: {error}", hint) from error
    except OSError as error:
        raise Failure(Exit.STORAGE, f"the mirror cannot be fetched: {error}", "free space, then start again") from error
    finally:
        discard(temporary)
    return name


def _fetch_commit(
    store: ObjectStore, folder: Path, commits: Mapping[str, Mapping[str, Stored]], reasons: list[str]
) -> str:
    """Download the newest commit that verifies into `folder`, under its name."""
    from drivetrain.checkpoint.commit import verify  # imports torch

    # Newest first, and on to the one before: a mirror that lost a part of one commit has others.
    damage = []
    for name in sorted(commits, key=by_step, reverse=True):
        try:
            _download(store, name, commits[name], folder / name)
            verify(folder / name)
            return name
        except (Unfit, Damaged) as error:
            damage.append(f"{name} in the mirror: {error}")
            reasons.append(damage[-1])
            discard(folder / name)
    raise Failure(
        Exit.NO_VALID_COMMIT,
        f"none of {len(damage)} commits in the mirror verifies: {'; '.join(damage)}",
        "restore one from a copy, or start another run by --run and another checkpoint.mirror",
    )


def _download(store: ObjectStore, name: str, there: Mapping[str, Stored], folder: Path) -> None:
    """A commit's files as they are in the store, durable; only such whose listed size the manifest confirms."""
    if there[MANIFEST].size > LONGEST:
        raise Unfit(f"a manifest of {there[MANIFEST].size} bytes")
    make_folder(folder)
    _download_file(store, f"{FOLDER}/{name}/{MANIFEST}", there[MANIFEST].size, folder / MANIFEST)
    expected, step = files_of((folder / MANIFEST).read_bytes(), f"{name} in the mirror")
    if name_of(step) != name:
        raise Unfit(f"the manifest is of step {str(step)[:20]}")
    # All names and sizes first: nothing large is asked for that cannot verify.
    for file, (size, _) in expected.items():
        if file not in there:
            raise Unfit(f"{file} is missing")
        if there[file].size != size:
            raise Unfit(f"{file} has {there[file].size} bytes instead of {size}")
    require_space(folder, sum(size for size, _ in expected.values()), len(expected))
    for file, (size, _) in expected.items():
        _download_file(store, f"{FOLDER}/{name}/{file}", size, folder / file)
    sync_folder(folder)


def _download_file(store: ObjectStore, key: str, size: int, path: Path) -> None:
    """Write an object of known size to a new file, 0600, by several requests at a time."""
    descriptor = create(path)

    def copy(start: int) -> None:
        stop = min(start + BLOCK, size)
        content = store.read(key, start, stop)
        if len(content) != stop - start:
            raise Unfit(f"{path.name} is shorter than the store says")
        at = 0
        while at < len(content):
            at += os.pwrite(descriptor, content[at:], start + at)

    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(copy, range(0, size, BLOCK)):
                pass
        os.fsync(descriptor)
    except FileNotFoundError:
        raise Unfit(f"{path.name} is missing") from None
    finally:
        os.close(descriptor)


def _publish(temporary: Path, final: Path) -> None:
    """Rename a verified commit to its place; what stood there did not verify, or fetch would not have been called."""
    if final.exists():
        remove(final)
    rename(temporary, final)
