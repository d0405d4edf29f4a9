"""What a command line means by its inputs: files in folders and patterns, saved data sets, shards of the hub."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from drivetrain.data.hub import PREFIX, Hub, open_hub
from drivetrain.data.saved import is_saved, saved_files
from drivetrain.spec.exits import Exit, Failure

Kind = Literal["text", "jsonl", "parquet", "arrow", "hub"]

_LINES_AND_TABLES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_KINDS: dict[str, Kind] = {**_LINES_AND_TABLES, ".arrow": "arrow"}
# What is taken from a folder; a file that is named is text by itself. Arrow files within a folder may be any split, or
# what `datasets` keeps of its computations, so they are taken where they are named, or the folder's own list does.
_TAKEN = (".txt", ".text", ".md", ".py", *_LINES_AND_TABLES)
_PACKED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Input:
    """One file to read, or a shard of a `hub` data set, whose size is 1; `packed` is the suffix of a compression."""

    path: str
    kind: Kind
    packed: str
    size: int
    changed: int  # nanoseconds
    hub: Hub | None = None
    shard: int = 0

    @property
    def identity(self) -> list[Any]:
        """What must be the same when work is taken up again."""
        identity: list[Any] = [self.path, self.kind, self.size, self.changed]
        if self.hub:
            identity.append(self.hub.record)
        return identity


def find_inputs(
    given: Sequence[str], include: Sequence[str] = (), kind: Kind | None = None, split: str | None = None
) -> list[Input]:
    """The files that paths, patterns and folders mean, in the order given, sorted within a pattern or a folder.

    Of a folder, the files that match `include`, or else those with a suffix that is known; hidden ones never. Where
    neither `include` nor `kind` is given, a folder that `datasets` saved means its own files; `split` says which one of
    a DatasetDict. Raises Failure(66) where one is missing, 65 where one is no regular file or a split is not chosen, 64
    where one's name leaves its kind open, or `split` is given without a saved folder.
    """
    saved: set[str] = set()
    if not include and kind is None:
        saved.update(one for one in given if is_saved(Path(one)))
    if split is not None and not saved:
        cause = "--split chooses in a folder of several data sets that `save_to_disk` wrote, and none is given"
        raise Failure(Exit.BAD_COMMAND, cause, "leave --split out, or --include and --kind, if that is such a folder")
    found: list[str] = []
    for one in given:
        if one in saved:
            found += map(str, saved_files(Path(one), split, "--split"))
        else:
            found += _expanded(one, include)
    if not found:
        hint = f"files in a folder {_wanted(include)}"
        raise Failure(Exit.INPUT_MISSING, f"no file to read in {', '.join(given)}", hint)
    return [_input(path, kind) for path in found]


def find_shards(given: Sequence[str], config: str | None = None, split: str | None = None) -> list[Input]:
    """The shards of `hub:` data sets, in order. Raises what `open_hub` does, and 64 where a file is among them."""
    for one in given:
        if not one.startswith(PREFIX):
            cause = f"{one} is no {PREFIX} data set, as others are"
            raise Failure(Exit.BAD_COMMAND, cause, "prepare files and streams apart, and blend them in the recipe")
    # All are opened first: one that is not there is told before the work begins.
    hubs = [open_hub(one.removeprefix(PREFIX), config, split) for one in given]
    found: list[Input] = []
    for hub in hubs:
        for shard in range(hub.shards):
            name = f"{PREFIX}{hub.name}, {hub.split}, shard {shard} of {hub.shards}"
            found.append(Input(name, "hub", "", 1, 0, hub, shard))
    return found


def check_unchanged(inputs: Sequence[Input]) -> None:
    """Raises Failure(65) where an input is not what it was when it was found."""
    for hub in {source.hub for source in inputs}:  # which has many shards
        if hub is not None:
            hub.check()
    for source in inputs:
        if not source.hub and _state(os.stat(source.path)) != (source.size, source.changed):
            raise changed(source.path)


def changed(path: str) -> Failure:
    """An input is not what it was when the work began."""
    return Failure(Exit.BAD_DATA, f"{path} changed while it was read", "begin again when it is at rest", file=path)


def _expanded(given: str, include: Sequence[str]) -> list[str]:
    path = Path(given)
    if path.is_dir():
        return sorted(_within(path, include))
    if not path.exists() and any(sign in given for sign in "*?["):
        return sorted(found for found in glob.glob(given, recursive=True) if not Path(found).is_dir())
    return [given]


def _within(folder: Path, include: Sequence[str]) -> Iterator[str]:
    """The files of a folder that are read, in any order."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error) from error

    for at, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            path = Path(at, name)
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if not hidden and _taken(name, include):
                yield str(path)


def _taken(name: str, include: Sequence[str]) -> bool:
    if include:
        return any(fnmatch(name, pattern) for pattern in include)
    return _unpacked_name(name).lower().endswith(_TAKEN)


def _wanted(include: Sequence[str]) -> str:
    if include:
        return f"match {', '.join(include)}"
    return f"end in {', '.join(_TAKEN)}, or match --include"


def _unpacked_name(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix in _PACKED else name


def _input(path: str, kind: Kind | None) -> Input:
    try:
        status = os.stat(path)
        # Whether it may be read shows only by opening it. What is no regular file is not opened: a pipe would block.
        with open(path, "rb") if stat.S_ISREG(status.st_mode) else open(os.devnull, "rb"):
            pass
    except OSError as error:
        raise _unreadable(error) from error
    if not stat.S_ISREG(status.st_mode):
        raise Failure(Exit.BAD_DATA, f"{path} is not a regular file", "give files, folders or patterns", file=path)
    suffix = os.path.splitext(path)[1]
    packed = suffix if suffix in _PACKED else ""
    inner = os.path.splitext(_unpacked_name(path))[1].lower()
    if inner == ".json" and kind is None:  # as text, lines of JSON would be learned with their braces and field names
        cause = f"{path}: a name in .json may be lines of JSON or one text"
        raise Failure(Exit.BAD_COMMAND, cause, "say which: --kind jsonl or --kind text", file=path)
    kind = kind or _KINDS.get(inner, "text")
    if kind in ("parquet", "arrow") and packed:
        cause = f"{path}: Parquet and Arrow files are not read in order, as an archive is"
        raise Failure(Exit.BAD_DATA, cause, "decompress the file", file=path)
    return Input(path, kind, packed, *_state(status))


def _unreadable(error: OSError) -> Failure:
    path = str(error.filename)
    return Failure(Exit.INPUT_MISSING, f"{path}: {error.strerror}", "mend the path, or leave it out", file=path)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
