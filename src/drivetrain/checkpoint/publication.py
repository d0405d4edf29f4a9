"""Which commits of a run are there: one appears by a rename, and those that need not stay are taken away."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from drivetrain.checkpoint.commit import verify
from drivetrain.checkpoint.files import OpenFolder, is_removed, remove, rename
from drivetrain.checkpoint.manifest import FOLDER, Damaged, entries, name_of, step_of
from drivetrain.checkpoint.reading import manifest_in
from drivetrain.checkpoint.retention import Retention, pinned_steps, retained
from drivetrain.runtime.lease import Lease, taken_over
from drivetrain.spec.exits import Failure


def names(run: Path) -> list[str]:
    """Names of all commits, valid or not, newest first; without those that somebody has begun to remove."""
    there = [name for name in entries(run / FOLDER) if step_of(name) is not None]
    found = [name for name in there if not is_removed(run / FOLDER / name)]
    return sorted(found, key=lambda name: step_of(name) or 0, reverse=True)


class Publication:
    """What the holder of a run's lease does to its commits; without a lease nobody else can be there."""

    def __init__(self, run: Path, lease: Lease | None) -> None:
        self._run = run
        self._lease = lease
        self._verified: dict[int, int] = {}  # step: position
        self._damaged: set[str] = set()

    def publish(self, temporary: Path, step: int, position: int) -> None:
        """The rename, while nobody can take the directory over: now the commit exists. Raises Failure(85)."""
        final = self._run / FOLDER / name_of(step)
        with self._lease.holding() if self._lease else nullcontext():
            if final.exists():  # of this step, but it did not verify, or was fenced off
                self._remove(final)
            # Where the process stalls here and another takes over, that one's commit may be there when it wakes up.
            # `rename` refuses a folder that is not empty; and a new one in an empty place is fenced off.
            rename(temporary, final)
            # A stall outlasts the patience of whoever waits for the directory: what is said now must be true now.
            if self._lease:
                self._lease.require()
        self._verified[step] = position

    def rotate(self, scores: Mapping[int, float], policy: Retention) -> tuple[str, ...]:
        """Remove what need not stay. Only commits that verify count, and one that does not is left for a person."""
        for name in names(self._run):
            step = step_of(name)
            if step is not None and step not in self._verified and name not in self._damaged:
                try:
                    self._verified[step] = verify(self._run / FOLDER / name).get("position", 0)
                except (Damaged, Failure):
                    self._damaged.add(name)
        there: dict[int, int] = {}
        for step, position in self._verified.items():
            if (self._run / FOLDER / name_of(step)).is_dir():  # a person may have removed it meanwhile
                there[step] = position
        stay = retained(there, pinned_steps(self._run), scores, policy)
        removed: list[str] = []
        for step in sorted(there.keys() - stay):
            self._remove(self._run / FOLDER / name_of(step))
            removed.append(name_of(step))
        self._verified = {step: there[step] for step in stay}
        return tuple(removed)

    def _remove(self, path: Path) -> None:
        """Remove a commit, unless a newer holder has made it, or this one is no longer the holder: Failure(85)."""

        def require_ours(folder: OpenFolder) -> None:
            # After the folder is open: whoever takes over later puts another folder in its place.
            if self._lease is None:
                return
            self._lease.require()
            with suppress(Damaged):
                if manifest_in(folder, path).get("epoch", 0) > self._lease.epoch:
                    raise taken_over(self._run)

        remove(path, require_ours)
