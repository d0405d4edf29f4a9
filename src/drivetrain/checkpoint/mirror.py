"""A copy of commits and ledger in an object store, so that a machine which lost its disk can go on.

Under the URL lie `checkpoints/<commit>/<file>`, with `MANIFEST.json` last: a commit without it is not there. The ledger
lies in segments of whole records, `ledger/<root>/<start>-<end>-<previous>-<last>.jsonl`: byte offsets, and the chain
hashes before and at their end. The names alone say which segments continue each other and which the local ledger
contains; where it lost records that the mirror has, a new branch starts at the last segment they share.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from drivetrain.ledger.ledger import parse, read
from drivetrain.spec.exits import Exit, Failure

# As in commit.py, which needs torch to be imported.
_FOLDER = "checkpoints"
_MANIFEST = "MANIFEST.json"
_LEDGER = "ledger.jsonl"

_SCHEMES = ("s3", "gs", "az", "file")
_NAME = re.compile(r"step-[0-9]{8,12}")
_FILE = re.compile(r"[a-z]+-[0-9]{5}\.(safetensors|json)")
_OBJECT = re.compile(rf"{_FOLDER}/({_NAME.pattern})/({re.escape(_MANIFEST)}|{_FILE.pattern})")
_SEGMENT = re.compile(r"ledger/([0-9a-f]{16})/([0-9]{16})-([0-9]{16})-([0-9a-f]{16})-([0-9a-f]{16})\.jsonl")
_TAIL = re.compile(rb',"chain":"([0-9a-f]{32})"\}\n\Z')
_SECRET = re.compile(r"SECRET|TOKEN|KEY|PASSWORD|SAS|CREDENTIAL")

_WAITS = (1.0, 4.0, 16.0)  # seconds before each further try
_BACKOFF = timedelta(milliseconds=100)  # obstore's own, before two tries within each of them
_BLOCK = 8 << 20  # bytes that one request carries
_PARTS = 9000  # S3 takes at most 10,000 parts of an object
_LARGEST_MANIFEST = 64 << 20
_SMALL_SEGMENT = 4 << 20  # the last segment is replaced by a longer one until it has so many bytes
_SEGMENT_BYTES = 16 << 20  # a segment ends with the record that reaches this
_LARGEST_SEGMENT = 64 << 20
_START = "0" * 16  # the hash before the first record, as names have it

_T = TypeVar("_T")


class _Unavailable(Exception):  # noqa: N818 - says what the store is, and is always caught
    """Why the store did not do what was asked, in one line without secrets."""


class _Unfit(Exception):  # noqa: N818 - says what a commit is, and is always caught
    """Why a commit is not uploaded, or not taken from the mirror."""


@dataclass(frozen=True)
class _Object:
    """What the store's listing says of an object."""

    size: int
    modified: datetime


@dataclass(frozen=True)
class _Segment:
    """A piece of a ledger: whole records, bytes `start` to `end`, between the chain hashes `previous` and `tail`.

    `root` is the hash of the ledger's first record. Hashes are cut to 16 digits: they only tell where to look.
    """

    root: str
    start: int
    end: int
    previous: str
    tail: str
    modified: float

    @property
    def key(self) -> str:
        """The object's name."""
        return f"ledger/{self.root}/{self.start:016d}-{self.end:016d}-{self.previous}-{self.tail}.jsonl"


class Mirror:
    """Uploads on a thread of its own. What goes wrong there is told by `notes` and never raised in training.

    One run to a URL: a mirror that holds another run's commits is left as it is.
    """

    def __init__(self, url: str, run: Path, *, sleep: Callable[[float], object] | None = None) -> None:
        """Nothing is reached yet. Raises Failure(78) where the URL cannot be meant, or obstore is not installed."""
        _check(url)
        self._url = url
        self._run = run
        self._changed = threading.Condition()
        self._queued: str | None = None
        self._closing = False
        self._abandoned = threading.Event()
        self._sleep = sleep or self._abandoned.wait
        self._said: deque[str] = deque(maxlen=100)
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
            except (_Unavailable, _Unfit, OSError) as error:
                self._note(f"mirror: cannot upload {name}: {error}, tried again with the next commit")
            except BaseException as error:  # a panic in obstore is no Exception; the thread has to outlive it
                self._note(f"mirror: cannot upload {name}: {_clean(error)}, tried again with the next commit")

    def _note(self, text: str) -> None:
        with self._changed:
            self._said.append(text)

    def _mirror(self, name: str) -> None:
        """Ledger, files, manifest, then what is no longer kept."""
        began = time.monotonic()
        with ExitStack() as stack:
            files = _open_commit(self._run / _FOLDER / name, stack)
            store = _Store(self._url, self._sleep, self._abandoned, create=True)
            commits = _commits(store)
            segments = _segments(store)
            self._refuse_others(store, commits, segments)
            try:
                _push_ledger(store, self._run / _LEDGER, segments)
            except _Unfit as damage:  # the commit is worth having all the same
                self._note(f"mirror: {damage}; later records are not uploaded")
            _push_commit(store, name, files, commits.get(name, {}))
        self._note(f"mirrored {name} in {time.monotonic() - began:.1f} s")
        try:
            _retire(store, commits, name, self._run / _FOLDER)
        except (_Unavailable, OSError) as error:
            self._note(f"mirror: cannot remove old commits: {error}, tried again with the next commit")

    def _refuse_others(
        self, store: _Store, commits: Mapping[str, Mapping[str, _Object]], segments: Collection[_Segment]
    ) -> None:
        """Raises _Unfit where the mirror holds commits of another run: rotation would remove them."""
        if not segments or _root(self._run / _LEDGER) in {segment.root for segment in segments}:
            return
        whole = [name for name, files in commits.items() if _MANIFEST in files]
        if whole and not any(self._shared(store, name, commits[name][_MANIFEST]) for name in whole):
            raise _Unfit("the URL holds commits of another run; name another one in checkpoint.mirror, or empty it")

    def _shared(self, store: _Store, name: str, manifest: _Object) -> bool:
        """Whether a commit is the same here and in the mirror."""
        local = self._run / _FOLDER / name / _MANIFEST
        with suppress(FileNotFoundError):
            return manifest.size <= _LARGEST_MANIFEST and local.read_bytes() == store.read(
                f"{_FOLDER}/{name}/{_MANIFEST}", 0, manifest.size
            )
        return False


def fetch(
    url: str,
    run: Path,
    passed_over: list[str] | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> str | None:
    """Bring the mirror's newest commit that verifies, and the ledger, into `run`; the commit's name, or None.

    None means that the store answered and holds no whole commit. Reasons why newer commits, or parts of the ledger,
    were not taken are appended to `passed_over`. A ledger that is there already is replaced only by a continuation of
    it. Raises Failure(86) where no commit verifies, 74 where the store or the disk fails, 78 as `Mirror` does.
    """
    _check(url)
    reasons: list[str] = [] if passed_over is None else passed_over
    temporary = run / _FOLDER / f".tmp-fetch-{os.getpid()}"
    try:
        store = _Store(url, sleep)
        commits = {name: files for name, files in _commits(store).items() if _MANIFEST in files}
        if not commits:
            return None
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)
        name = _fetch_commit(store, temporary, commits, reasons)
        _fetch_ledger(store, temporary / _LEDGER, run / _LEDGER, reasons)
        _publish(temporary / name, run / _FOLDER / name)  # last: a start that finds it does not look here again
    except _Unavailable as error:
        hint = "it may hold this run's commits: see that it can be reached, or take checkpoint.mirror out"
        raise Failure(Exit.STORAGE, f"the mirror cannot be read: {error}", hint) from error
    except OSError as error:
        raise Failure(Exit.STORAGE, f"the mirror cannot be fetched: {error}", "free space, then start again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return name


class _Store:
    """An object store in which every request is tried again, and only _Unavailable and FileNotFoundError come out."""

    def __init__(
        self,
        url: str,
        sleep: Callable[[float], object],
        abandoned: threading.Event | None = None,
        create: bool = False,
    ) -> None:
        """`create` makes the folder of a `file://` URL; the one above it has to be there, as a bucket has."""
        self._sleep = sleep
        self._abandoned = abandoned or threading.Event()
        self._store = self._opened(url, create)

    def list(self, prefix: str) -> dict[str, _Object]:
        """All objects below `prefix`, by name."""
        import obstore

        def listed() -> dict[str, _Object]:
            if self._store is None:
                return {}
            metas = [meta for chunk in obstore.list(self._store, prefix) for meta in chunk]
            return {meta["path"]: _Object(meta["size"], meta["last_modified"]) for meta in metas}

        return self._patient(listed)

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Bytes of an object. Raises FileNotFoundError where it is not there; may be fewer where it is shorter."""
        import obstore

        if start == stop:
            return b""
        return self._patient(lambda: bytes(obstore.get_range(self._store, key, start=start, end=stop)), missing=True)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, and see that it has its size."""
        import obstore

        def written() -> None:
            obstore.put(self._store, key, content, use_multipart=False)
            self._see(key, len(content))

        self._patient(written)

    def put_file(self, key: str, file: IO[bytes], size: int, digest: str) -> None:
        """Write a file's bytes in parts. Raises _Unfit, with no object left, where they do not have their SHA-256."""
        import obstore

        block = max(_BLOCK, -(-size // _PARTS))

        def written() -> str:
            file.seek(0)
            seen = hashlib.sha256()
            if size <= block:
                content = file.read(size)
                seen.update(content)
                obstore.put(self._store, key, content, use_multipart=False)
            else:
                obstore.put(self._store, key, _blocks(file, block, seen), chunk_size=block, max_concurrency=4)
            self._see(key, size)
            return seen.hexdigest()

        if self._patient(written) != digest:
            self.remove(key)
            raise _Unfit(f"{key.rpartition('/')[2]} does not have its SHA-256 any more")

    def remove(self, key: str) -> None:
        """Take an object away, where it is there."""
        import obstore

        with suppress(FileNotFoundError):
            self._patient(lambda: obstore.delete(self._store, key), missing=True)

    def _see(self, key: str, size: int) -> None:
        import obstore

        there = obstore.head(self._store, key)["size"]
        if there != size:
            raise OSError(f"{key} has {there} bytes in the store instead of {size}")

    def _opened(self, url: str, create: bool) -> Any:
        """The store, or None for a `file://` folder which nobody made yet, in one that is there."""
        from obstore.store import LocalStore, from_url

        if urlsplit(url).scheme == "file":
            folder = Path(unquote(urlsplit(url).path))
            if not folder.parent.is_dir():
                raise _Unavailable(f"{folder.parent} is not there")
            if create:
                self._patient(lambda: folder.mkdir(mode=0o700, exist_ok=True))
            elif not folder.is_dir():
                return None
            return self._patient(lambda: LocalStore(folder, automatic_cleanup=True))
        # Options that are given hide those of the environment, so that one is looked up here.
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
        backoff: Any = {"init_backoff": _BACKOFF, "max_backoff": timedelta(seconds=2), "base": 2}
        return self._patient(
            lambda: from_url(
                url,
                client_options={"timeout": "60s", "connect_timeout": "5s", "allow_http": plain},
                retry_config={"max_retries": 2, "backoff": backoff, "retry_timeout": timedelta(seconds=60)},
            )
        )

    def _patient(self, request: Callable[[], _T], missing: bool = False) -> _T:
        """What `request` returns, at the latest at the fourth try; `missing` lets FileNotFoundError through."""
        from obstore.exceptions import BaseError

        for wait in (*_WAITS, None):
            if self._abandoned.is_set():
                raise _Unavailable("given up")
            try:
                return request()
            except (BaseError, OSError, ValueError) as error:
                if missing and isinstance(error, FileNotFoundError):
                    raise
                if wait is None or _lasting(error):
                    raise _Unavailable(_clean(error)) from None
                self._sleep(wait)
        raise AssertionError


def _check(url: str) -> None:
    """Raises Failure(78) for a URL of no store that is known, or with credentials in it, and without obstore."""
    parts = urlsplit(url)
    local = parts.scheme == "file"
    if parts.scheme not in _SCHEMES or bool(parts.netloc) == local or (local and not parts.path.strip("/")):
        known = "s3://bucket/path, gs://bucket/path, az://container/path or file:///path"
        raise Failure(Exit.BAD_RECIPE, f"checkpoint.mirror is no {known}", "correct the URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "credentials are taken from the environment, as in AWS_ACCESS_KEY_ID"
        raise Failure(Exit.BAD_RECIPE, "checkpoint.mirror has more than a bucket and a path in its URL", hint)
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise Failure(Exit.BAD_RECIPE, "checkpoint.mirror needs obstore", "pip install 'drivetrain[mirror]'") from None


def _lasting(error: Exception) -> bool:
    """Whether another try would fail as well."""
    from obstore import exceptions

    return isinstance(
        error,
        (
            ValueError,
            FileNotFoundError,
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.InvalidPathError,
            exceptions.NotSupportedError,
            exceptions.UnknownConfigurationKeyError,
        ),
    )


def _clean(error: BaseException) -> str:
    """An error in one short line, without the values of secret variables and without queries, where tokens stand."""
    text = " ".join(str(error).partition("Debug source:")[0].split()) or type(error).__name__
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET.search(name.upper()):
            text = text.replace(value, "***")
    return re.sub(r"\?\S+", "?...", text)[:300]


def _blocks(file: IO[bytes], size: int, seen: Any) -> Iterator[bytes]:
    """A file's bytes in blocks, hashed as they go."""
    while block := file.read(size):
        seen.update(block)
        yield block


def _commits(store: _Store) -> dict[str, dict[str, _Object]]:
    """Files of each commit in the store, whole or not; whatever has another name than ours is as if not there."""
    commits: dict[str, dict[str, _Object]] = {}
    for key, facts in store.list(_FOLDER).items():
        if match := _OBJECT.fullmatch(key):
            commits.setdefault(match[1], {})[match[2]] = facts
    return commits


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def _open_commit(path: Path, stack: ExitStack) -> dict[str, IO[bytes]]:
    """A local commit's files, opened before anything slow: it may be rotated away while it is being uploaded."""
    try:
        manifest = stack.enter_context(_open(path / _MANIFEST))
        files, _ = _parse_manifest(manifest.read())
        return {name: stack.enter_context(_open(path / name)) for name in files} | {_MANIFEST: manifest}
    except FileNotFoundError:
        raise _Unfit("it is no longer in the run's checkpoints") from None


def _open(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _parse_manifest(content: bytes) -> tuple[dict[str, tuple[int, str]], int]:
    """Size and SHA-256 of each file, and the step. Raises _Unfit for anything that no commit of ours has."""
    try:
        line, seal, end = content.split(b"\n")
        if end or hashlib.sha256(line).hexdigest().encode() != seal:
            raise _Unfit("the manifest does not have its own hash")
        manifest = json.loads(line)
        files = {name: (facts["size"], facts["sha256"]) for name, facts in manifest["files"].items()}
        step = manifest["step"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Unfit("the manifest is torn or has another form") from None
    for name, (size, digest) in files.items():
        if not _FILE.fullmatch(name) or type(size) is not int or size < 0 or not isinstance(digest, str):
            raise _Unfit(f"the manifest names {name[:80]!r}")
    return files, step


def _push_commit(store: _Store, name: str, files: Mapping[str, IO[bytes]], there: Mapping[str, _Object]) -> None:
    """Upload a commit whose files are open, the manifest last, unless the same one is there."""
    files[_MANIFEST].seek(0)
    manifest = files[_MANIFEST].read()
    expected, _ = _parse_manifest(manifest)
    key = f"{_FOLDER}/{name}/{_MANIFEST}"
    if _MANIFEST in there:
        sizes = {file: size for file, (size, _) in expected.items()} | {_MANIFEST: len(manifest)}
        if sizes == {file: facts.size for file, facts in there.items()} and _same(store, key, manifest):
            return
        store.remove(key)  # from here on the commit is not there, until its files are
    for file, (size, digest) in expected.items():
        store.put_file(f"{_FOLDER}/{name}/{file}", files[file], size, digest)
    store.put(key, manifest)


def _same(store: _Store, key: str, content: bytes) -> bool:
    try:
        return store.read(key, 0, len(content)) == content
    except FileNotFoundError:
        return False


def _retire(store: _Store, commits: Mapping[str, Mapping[str, _Object]], pushed: str, local: Path) -> None:
    """Remove commits that are no longer in `local`, except the newest two and `pushed`; `commits` is from before."""
    whole = {name for name, files in commits.items() if _MANIFEST in files} | {pushed}
    kept = {*sorted(whole, key=_step)[-2:], pushed, *os.listdir(local)}
    for name in commits.keys() - kept:
        # The manifest first, so that no half-removed commit is taken for one.
        for file in sorted(commits[name], key=lambda file: file != _MANIFEST):
            store.remove(f"{_FOLDER}/{name}/{file}")


def _segments(store: _Store) -> list[_Segment]:
    """The ledger's segments in the store; whatever has another name than ours, or another size, is as if not there."""
    segments = []
    for key, facts in store.list("ledger").items():
        if match := _SEGMENT.fullmatch(key):
            root, start, end, previous, tail = match.groups()
            segment = _Segment(root, int(start), int(end), previous, tail, facts.modified.timestamp())
            if 0 < facts.size == segment.end - segment.start <= _LARGEST_SEGMENT:
                segments.append(segment)
    return segments


def _path(segments: Collection[_Segment], newest: bool) -> list[_Segment]:
    """Segments that continue each other from the first record on: to the newest end, or to the furthest."""
    before: dict[_Segment, _Segment | None] = {}
    ends: dict[tuple[str, int, str], _Segment | None] = {(s.root, 0, _START): None for s in segments}
    for segment in sorted(segments, key=lambda segment: (segment.start, segment.end)):
        at = (segment.root, segment.start, segment.previous)
        if at in ends:
            before[segment] = ends[at]
            ends.setdefault((segment.root, segment.end, segment.tail), segment)
    path: list[_Segment] = []
    at = max(before, key=lambda s: (s.modified if newest else 0, s.end), default=None)
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def _root(ledger: Path) -> str | None:
    """The hash of the ledger's first record, or None where it has none."""
    try:
        with _open(ledger) as file:
            match = _TAIL.search(file.readline())
    except FileNotFoundError:
        return None
    return match[1][:16].decode() if match else None


def _tail(file: IO[bytes], end: int) -> str:
    """The chain hash of the record that ends at byte `end`; empty at the start, and where no record ends."""
    start = max(0, end - 64)
    file.seek(start)
    match = _TAIL.search(file.read(end - start))
    return match[1].decode() if match and file.tell() == end else ""


def _push_ledger(store: _Store, ledger: Path, segments: Collection[_Segment]) -> None:
    """Upload the whole records that the mirror does not have, then remove segments which the ledger does not contain.

    Raises _Unfit where records do not follow from each other; those before are uploaded.
    """
    root = _root(ledger)
    if root is None:
        return
    own = [segment for segment in segments if segment.root == root]
    with _open(ledger) as file:
        path = _path([segment for segment in own if _contains(file, segment)], newest=False)
        covered = path[-1].end if path else 0
        if path and path[-1].end - path[-1].start < _SMALL_SEGMENT:
            path.pop()  # a short last segment is replaced by a longer one: few objects, however many commits
        start = path[-1].end if path else 0
        previous = _tail(file, start)
        added = []
        for content, tail in _pieces(file, start, previous):
            end = start + len(content)
            if end > covered:
                added.append(_Segment(root, start, end, previous[:16] or _START, tail[:16], 0))
                store.put(added[-1].key, content)
            start, previous = end, tail
    if added:
        for key in {segment.key for segment in own} - {segment.key for segment in path + added}:
            store.remove(key)


def _contains(file: IO[bytes], segment: _Segment) -> bool:
    """Whether the local ledger has the same chain hashes at both ends, which makes the bytes between the same."""
    if _tail(file, segment.end)[:16] != segment.tail:
        return False
    return (_tail(file, segment.start)[:16] or _START) == segment.previous if segment.start else True


def _pieces(file: IO[bytes], start: int, previous: str) -> Iterator[tuple[bytes, str]]:
    """The whole records from `start` on, checked, in pieces of some MiB, each with its last chain hash.

    Raises _Unfit at a record that does not follow from the one before, after yielding those before it.
    """
    file.seek(start)
    lines: list[bytes] = []
    size, damaged = 0, False
    for line in file:
        if not line.endswith(b"\n"):  # it is being written
            break
        damaged = not _sound(line, previous)
        if damaged:
            break
        lines.append(line)
        size += len(line)
        previous = _told(line)
        if size >= _SEGMENT_BYTES:
            yield b"".join(lines), previous
            start, lines, size = start + size, [], 0
    if lines:
        yield b"".join(lines), previous
    if damaged:
        raise _Unfit(f"the ledger's record at byte {start + size} does not follow from the one before")


def _fetch_commit(store: _Store, folder: Path, commits: Mapping[str, Mapping[str, _Object]], reasons: list[str]) -> str:
    """Download the newest commit that verifies into `folder`, under its name."""
    from drivetrain.checkpoint.commit import Damaged, verify

    damage = []
    for name in sorted(commits, key=_step, reverse=True):
        try:
            _download(store, name, commits[name], folder / name)
            verify(folder / name)
            return name
        except (_Unfit, Damaged) as error:
            damage.append(f"{name} in the mirror: {error}")
            reasons.append(damage[-1])
            shutil.rmtree(folder / name, ignore_errors=True)
    raise Failure(
        Exit.NO_VALID_COMMIT,
        f"none of {len(damage)} commits in the mirror verifies: {'; '.join(damage)}",
        "restore one from a copy, or start another run by --run and another checkpoint.mirror",
    )


def _download(store: _Store, name: str, there: Mapping[str, _Object], folder: Path) -> None:
    """A commit's files as they are in the store, durable; only such whose listed size the manifest confirms."""
    if there[_MANIFEST].size > _LARGEST_MANIFEST:
        raise _Unfit(f"a manifest of {there[_MANIFEST].size} bytes")
    folder.mkdir(mode=0o700)
    _download_file(store, f"{_FOLDER}/{name}/{_MANIFEST}", there[_MANIFEST].size, folder / _MANIFEST)
    expected, step = _parse_manifest((folder / _MANIFEST).read_bytes())
    if type(step) is not int or f"step-{step:08d}" != name:
        raise _Unfit(f"the manifest is of step {str(step)[:20]}")
    for file, (size, _) in expected.items():
        if file not in there:
            raise _Unfit(f"{file} is missing")
        if there[file].size != size:
            raise _Unfit(f"{file} has {there[file].size} bytes instead of {size}")
    needed, free = sum(size for size, _ in expected.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{name} has {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free")
    for file, (size, _) in expected.items():
        _download_file(store, f"{_FOLDER}/{name}/{file}", size, folder / file)
    _sync(folder)


def _download_file(store: _Store, key: str, size: int, path: Path) -> None:
    """Write an object of known size to a new file, 0600, by several requests at a time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def copy(start: int) -> None:
        stop = min(start + _BLOCK, size)
        content = store.read(key, start, stop)
        if len(content) != stop - start:
            raise _Unfit(f"{path.name} is shorter than the store says")
        at = 0
        while at < len(content):
            at += os.pwrite(descriptor, content[at:], start + at)

    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(copy, range(0, size, _BLOCK)):
                pass
        os.fsync(descriptor)
    except FileNotFoundError:
        raise _Unfit(f"{path.name} is missing") from None
    finally:
        os.close(descriptor)


def _fetch_ledger(store: _Store, temporary: Path, ledger: Path, reasons: list[str]) -> None:
    """Put the mirror's ledger in its place, as far as it verifies."""
    segments = set(_segments(store))
    while path := _path(segments, newest=True):
        damaged = _join(store, path, temporary)
        if damaged is None:
            break
        reasons.append(f"{damaged.key} in the mirror is damaged")
        segments.discard(damaged)
    if not path:
        reasons.append("no ledger in the mirror verifies; a new one begins")
        return
    for _ in read(temporary):
        pass
    if not _continues(temporary, ledger):
        reasons.append(f"{ledger.name} has other records than the one in the mirror, and stays as it is")
        return
    os.rename(temporary, ledger)
    _sync(ledger.parent)


def _join(store: _Store, path: Collection[_Segment], target: Path) -> _Segment | None:
    """Write segments one after the other, durable; returns the first whose records do not follow, and stops there."""
    previous = ""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        for segment in path:
            try:
                content = store.read(segment.key, 0, segment.end - segment.start)
            except FileNotFoundError:
                return segment
            for line in BytesIO(content):
                if not line.endswith(b"\n") or not _sound(line, previous):
                    return segment
                previous = _told(line)
            if len(content) != segment.end - segment.start:
                return segment
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return None


def _told(line: bytes) -> str:
    """The chain hash of a record that was checked."""
    return line[-35:-3].decode()


def _sound(line: bytes, previous: str) -> bool:
    """Whether a line is a record that follows `previous`."""
    try:
        return isinstance(parse(line, previous), dict)
    except (ValueError, RecursionError):
        return False


def _continues(longer: Path, shorter: Path) -> bool:
    """Whether one file starts with all bytes of the other; true where that one is not there."""
    try:
        with _open(longer) as new, _open(shorter) as old:
            while block := old.read(_BLOCK):
                if new.read(len(block)) != block:
                    return False
    except FileNotFoundError:
        pass
    return True


def _publish(temporary: Path, final: Path) -> None:
    """Rename a verified commit to its place; what stood there did not verify, or fetch would not have been called."""
    if final.exists():
        trash = final.with_name(f".trash-{final.name}")
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(final, trash)
        shutil.rmtree(trash, ignore_errors=True)
    os.rename(temporary, final)
    _sync(final.parent)


def _sync(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
