"""What `drivetrain checkpoint` tells and does: commits as rows, pins, removals, differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drivetrain.checkpoint import retention
from drivetrain.checkpoint.commit import load, read_manifest, verify
from drivetrain.checkpoint.commits import LoadedCommit, names, newest, pick
from drivetrain.checkpoint.files import remove
from drivetrain.checkpoint.manifest import FOLDER, Damaged, step_of
from drivetrain.checkpoint.retention import PINS, pinned_steps
from drivetrain.runtime.lease import fenced, takeovers
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class CommitRow:
    """One commit: `bytes` in all files, `made` in Unix seconds; `damage` says why it does not count, "" where it
    does."""

    name: str
    step: int
    position: int
    made: float
    bytes: int
    attempt: int
    pinned: bool
    damage: str


def rows(run: Path, *, every_byte: bool) -> list[CommitRow]:
    """The commits of a run, newest first, judged by their manifests, or by every byte.

    Raises Failure(66) where there is no run.
    """
    _require_run(run)
    pinned, history = pinned_steps(run), takeovers(run)
    judge = verify if every_byte else read_manifest
    found = []
    for name in names(run):
        step = step_of(name) or 0
        try:
            metadata = judge(run / FOLDER / name)
            lost = fenced(history, name, metadata.get("epoch", 0))
            damage = "made by a run that had lost the directory" if lost else ""
        except Damaged as reason:
            metadata, damage = {}, str(reason)
        found.append(
            CommitRow(
                name=name,
                step=step,
                position=metadata.get("position", 0),
                made=metadata.get("time", 0.0),
                bytes=sum(file["size"] for file in metadata.get("files", {}).values()),
                attempt=metadata.get("attempt", 0),
                pinned=step in pinned,
                damage=damage,
            )
        )
    return found


def pin(run: Path, commit: str, *, off: bool = False) -> str:
    """Have rotation leave a commit alone, or no longer; returns its name. Raises what `pick` raises."""
    name = pick(run, commit).path.name
    if off:
        (run / PINS / name).unlink(missing_ok=True)
    else:
        retention.pin(run, name)
    return name


def take_away(run: Path, commit: str, *, force: bool = False) -> str:
    """Remove a commit, whole or damaged; returns its name.

    Raises Failure(66) where it is not there, 64 where it is pinned, or the only whole one, unless `force`.
    """
    table = {row.name: row for row in rows(run, every_byte=False)}
    row = table.get(commit)
    for other in table.values():
        if row is None and commit == str(other.step):
            row = other
    if row is None:
        there = ", ".join(table) or "none"
        raise Failure(Exit.INPUT_MISSING, f"no commit {commit!r} in {run}", f"there are {there}")
    if not force and row.pinned:
        raise Failure(Exit.BAD_COMMAND, f"{row.name} is pinned", "take the pin away first, or add --force")
    others = [other for other in table.values() if other.name != row.name and not other.damage]
    if not force and not row.damage and not others:
        raise Failure(Exit.BAD_COMMAND, f"{row.name} is the only whole commit of {run}", "add --force to remove it")
    remove(run / FOLDER / row.name)
    (run / PINS / row.name).unlink(missing_ok=True)
    return row.name


@dataclass(frozen=True)
class CommitDifference:
    """What two commits do not share: metadata and values with both sides, tensors with how they differ, all by name."""

    metadata: dict[str, tuple[Any, Any]]
    tensors: dict[str, str]
    equal: int


_OF_EACH = frozenset({"files", "sha256", "time", "ledger", "format"})
"""Metadata that differ between any two commits, also of the same state."""


def difference(first: Path, second: Path) -> CommitDifference:
    """Compare two places: runs (their newest commits) or commits. Raises what `at` raises."""
    one, two = at(first), at(second)
    metadata: dict[str, tuple[Any, Any]] = {}
    for key in sorted((one.metadata.keys() | two.metadata.keys()) - _OF_EACH):
        pair = one.metadata.get(key), two.metadata.get(key)
        if pair[0] != pair[1]:
            metadata[key] = pair
    ours, theirs = one.state.tensors, two.state.tensors
    tensors: dict[str, str] = {}
    equal = 0
    for name in sorted(ours.keys() | theirs.keys()):
        if how := _told(ours, theirs, name):
            tensors[name] = how
        else:
            equal += 1
    return CommitDifference(metadata, tensors, equal)


def at(place: Path) -> LoadedCommit:
    """The commit at a place: a run's newest, or the one whose folder it is.

    Raises Failure(66) where there is nothing, 65 where it is damaged.
    """
    if (place / FOLDER).is_dir():
        found = newest(place)
        if found is not None:
            return found
    elif step_of(place.name) is not None:
        try:
            return LoadedCommit(place, *load(place), passed_over=())
        except Damaged as damage:
            raise Failure(Exit.BAD_DATA, f"{place} is damaged: {damage}", "take another commit") from damage
    raise Failure(Exit.INPUT_MISSING, f"no commit at {place}", "name a run, or a folder in its checkpoints/")


def _told(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], name: str) -> str:
    """How a tensor differs; "" where its bits are the same."""
    if name not in theirs or name not in ours:
        side = "first" if name in ours else "second"
        return f"only in the {side}"
    one, two = ours[name], theirs[name]
    if one.shape != two.shape or one.dtype != two.dtype:
        return f"{tuple(one.shape)} {one.dtype} | {tuple(two.shape)} {two.dtype}".replace("torch.", "")
    # Bytes, since numbers are no bits: -0.0 equals 0.0, and NaN not even itself.
    if torch.equal(one.reshape(-1).view(torch.uint8), two.reshape(-1).view(torch.uint8)):
        return ""
    apart = (one.double() - two.double()).abs()
    return f"{int((one != two).sum())} of {one.numel()} numbers differ, by at most {float(apart.max()):.3g}"


def _require_run(run: Path) -> None:
    if not (run / FOLDER).is_dir():
        raise Failure(Exit.INPUT_MISSING, f"no commits in {run}", "name a run directory")
