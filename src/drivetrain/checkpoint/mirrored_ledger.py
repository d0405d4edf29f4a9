"""The mirror's ledger: segments of whole records whose names alone say which continue each other."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from drivetrain.checkpoint.store import BLOCK, ObjectStore, Unfit, open_file
from drivetrain.ledger.ledger import chain_of, follows, lines
from drivetrain.spec.files import sync_folder

LEDGER = "ledger.jsonl"
_SEGMENT = re.compile(r"ledger/([0-9a-f]{16})/([0-9]{16})-([0-9]{16})-([0-9a-f]{16})-([0-9a-f]{16})\.jsonl")
_TAIL = re.compile(rb',"chain":"([0-9a-f]{32})"\}\n\Z')
_SMALL_SEGMENT = 4 << 20  # the last segment is replaced by a longer one until it has so many bytes
_SEGMENT_BYTES = 16 << 20  # a segment ends with the record that reaches this
_LARGEST_SEGMENT = 64 << 20
_START = "0" * 16  # the hash before the first record, as names have it


@dataclass(frozen=True)
class Segment:
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


def segments_in(store: ObjectStore) -> list[Segment]:
    """The ledger's segments in the store; whatever has another name than ours, or another size, is as if not there."""
    segments = []
    for key, metadata in store.list("ledger").items():
        if match := _SEGMENT.fullmatch(key):
            root, start, end, previous, tail = match.groups()
            segment = Segment(root, int(start), int(end), previous, tail, metadata.modified.timestamp())
            if 0 < metadata.size == segment.end - segment.start <= _LARGEST_SEGMENT:
                segments.append(segment)
    return segments


def _path(segments: Collection[Segment], newest: bool) -> list[Segment]:
    """Segments that continue each other from the first record on: to the newest end, or to the furthest."""
    before: dict[Segment, Segment | None] = {}
    ends: dict[tuple[str, int, str], Segment | None] = {(s.root, 0, _START): None for s in segments}
    # In ascending order, so that what a segment continues has been looked at before it.
    for segment in sorted(segments, key=lambda segment: (segment.start, segment.end)):
        at = (segment.root, segment.start, segment.previous)
        if at in ends:
            before[segment] = ends[at]
            # The first way to an end is kept: all ways to it have the same bytes, as the chain's hash says.
            ends.setdefault((segment.root, segment.end, segment.tail), segment)
    path: list[Segment] = []
    # By time for a reader, since a branch may be shorter and newer; by length for a writer, which looks for what need
    # not be sent.
    at = max(before, key=lambda s: (s.modified if newest else 0, s.end), default=None)
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def root_of(ledger: Path) -> str | None:
    """The hash of the ledger's first record, or None where it has none."""
    try:
        with open_file(ledger) as file:
            match = _TAIL.search(file.readline())
    except FileNotFoundError:
        return None
    if match is None:
        return None
    return match[1][:16].decode()


def _tail(file: IO[bytes], end: int) -> str:
    """The chain hash of the record that ends at byte `end`; empty at the start, and where no record ends."""
    start = max(0, end - 64)
    file.seek(start)
    match = _TAIL.search(file.read(end - start))
    if match is None or file.tell() != end:  # the file may be shorter than that
        return ""
    return match[1].decode()


def push_ledger(store: ObjectStore, ledger: Path, segments: Collection[Segment]) -> None:
    """Upload the whole records that the mirror does not have, then remove segments which the ledger does not contain.

    Raises Unfit where records do not follow from each other; those before are uploaded.
    """
    root = root_of(ledger)
    if root is None:
        return
    own = [segment for segment in segments if segment.root == root]
    with open_file(ledger) as file:
        path = _path([segment for segment in own if _contains(file, segment)], newest=False)
        covered = path[-1].end if path else 0
        if path and path[-1].end - path[-1].start < _SMALL_SEGMENT:
            path.pop()  # a short last segment is replaced by a longer one: few objects, however many commits
        start = path[-1].end if path else 0
        added = _push_records(store, file, root, start, covered)
    if not added:
        return
    # Only now that the longer ones are there: until then these are all that the mirror has.
    needed = {segment.key for segment in (*path, *added)}
    for segment in own:
        if segment.key not in needed:
            store.remove(segment.key)


def _push_records(store: ObjectStore, file: IO[bytes], root: str, start: int, covered: int) -> list[Segment]:
    """Upload the records from byte `start` on, where a segment ends, but for pieces that end before `covered`, where
    the mirror's records end; the new segments."""
    added: list[Segment] = []
    previous = _tail(file, start)
    for content, tail in _pieces(file, start, previous):
        end = start + len(content)
        if end > covered:
            segment = Segment(root, start, end, previous[:16] or _START, tail[:16], 0)
            store.put(segment.key, content)
            added.append(segment)
        start, previous = end, tail
    return added


def _contains(file: IO[bytes], segment: Segment) -> bool:
    """Whether the local ledger has the same chain hashes at both ends, which makes the bytes between the same."""
    if _tail(file, segment.end)[:16] != segment.tail:
        return False
    if not segment.start:
        return True
    return (_tail(file, segment.start)[:16] or _START) == segment.previous


def _pieces(file: IO[bytes], start: int, previous: str) -> Iterator[tuple[bytes, str]]:
    """The whole records from `start` on, checked, in pieces of some MiB, each with its last chain hash.

    Raises Unfit at a record that does not follow from the one before, after yielding those before it.
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
        previous = chain_of(line)
        if size >= _SEGMENT_BYTES:
            yield b"".join(lines), previous
            start, lines, size = start + size, [], 0
    if lines:
        yield b"".join(lines), previous
    if damaged:
        raise Unfit(f"the ledger's record at byte {start + size} does not follow from the one before")


def fetch_ledger(store: ObjectStore, temporary: Path, ledger: Path, reasons: list[str]) -> None:
    """Put the mirror's ledger in its place, as far as it verifies."""
    segments = set(segments_in(store))
    while path := _path(segments, newest=True):
        damaged = _join(store, path, temporary)
        if damaged is None:
            break
        reasons.append(f"{damaged.key} in the mirror is damaged")
        # Another way may lead past it: an older, shorter segment with the same records.
        segments.discard(damaged)
    if not path:
        reasons.append("no ledger in the mirror verifies; a new one begins")
        return
    # Read once more as a ledger is read: what the next start would refuse must not take its place.
    for _ in lines(temporary):
        pass
    if not _continues(temporary, ledger):
        reasons.append(f"{ledger.name} has other records than the one in the mirror, and stays as it is")
        return
    os.rename(temporary, ledger)
    sync_folder(ledger.parent)


def _join(store: ObjectStore, path: Collection[Segment], target: Path) -> Segment | None:
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
                previous = chain_of(line)
            if len(content) != segment.end - segment.start:
                return segment
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return None


def _sound(line: bytes, previous: str) -> bool:
    """Whether a line is a record that follows `previous`."""
    try:
        return follows(line, previous) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _continues(longer: Path, shorter: Path) -> bool:
    """Whether one file starts with all bytes of the other; true where that one is not there."""
    try:
        with open_file(longer) as new, open_file(shorter) as old:
            while block := old.read(BLOCK):
                if new.read(len(block)) != block:
                    return False
    except FileNotFoundError:
        pass
    return True
