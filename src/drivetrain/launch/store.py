"""The jobs that were submitted from here: one small file each, 0600, replaced as a whole."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.launch.states import JobStatus, State, next_state
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.config import settings_from
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json
from drivetrain.spec.registry import nearest

_TOKEN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a job. It is written before the engine is asked for anything, so none is ever unknown.

    `native` is the engine's name of the job, None while the request may not have arrived. `cancelled` is when its
    cancel was asked for, `heard` whether the engine has taken that. `seen` is the newest look, `checked` when that was.
    """

    token: str
    target: str
    kind: str
    settings: Mapping[str, Any]
    work: Mapping[str, Any]
    recipe: str
    submitted: float
    native: str | None = None
    state: State = State.SUBMITTED
    cancelled: float | None = None
    heard: bool = False
    seen: Mapping[str, Any] | None = None
    checked: float | None = None

    @property
    def run(self) -> Path:
        """The run directory."""
        return Path(self.work["job"]["folder"])

    @property
    def folder(self) -> Path:
        """The job's own folder."""
        return Path(self.work["folder"])

    @property
    def ended(self) -> bool:
        """Whether it has ended for good. What failed without a word of the job itself, its engine may start again."""
        told = (self.seen or {}).get("code") is not None or self.native is None
        return self.state in (State.SUCCEEDED, State.CANCELLED) or (self.state is State.FAILED and told)

    def submission(self) -> Submission:
        """What was submitted. Raises Failure(78) where this version cannot read its settings."""
        return Submission(
            target=self.target,
            settings=settings_from(self.target, self.settings),
            work=NodeWork.from_json(self.work),
        )

    def differs(self, submission: Submission) -> bool:
        """Whether something else would be submitted now, on the same run directory."""
        now = Record.of(submission, self.recipe, self.submitted)
        return json.dumps(_requested(self)) != json.dumps(_requested(now))

    def after(self, seen: JobStatus, now: float) -> Record:
        """The record after a look."""
        state = next_state(self.state, seen, cancelled=self.cancelled is not None)
        return replace(self, state=state, seen=asdict(seen), checked=now)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Record.from_json` reads it."""
        return asdict(self)

    @classmethod
    def of(cls, submission: Submission, recipe: str, now: float) -> Record:
        """A new job's record. `recipe` is what the user called it."""
        return cls(
            token=submission.token,
            target=submission.target,
            kind=submission.settings.kind,  # type: ignore[attr-defined]
            settings=asdict(submission.settings),
            work=submission.work.to_json(),
            recipe=recipe,
            submitted=now,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """The record that `to_json` described; ValueError, KeyError or TypeError where it is none."""
        NodeWork.from_json(data["work"])
        return cls(**{**data, "state": State(data["state"])})


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where jobs are kept: $DRIVETRAIN_JOBS, or `drivetrain/jobs` below $XDG_STATE_HOME or ~/.local/state."""
    if given := environment.get("DRIVETRAIN_JOBS"):
        return Path(given)
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "drivetrain" / "jobs"


class JobStore:
    """The jobs in one folder. Raises Failure(73) where it cannot be made."""

    def __init__(self, place: Path | None = None) -> None:
        self._folder = place if place is not None else folder()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            cause = f"{self._folder} cannot be made: {error}"
            raise Failure(Exit.CANNOT_CREATE, cause, "name another place by DRIVETRAIN_JOBS") from error

    @contextmanager
    def exclusive(self, name: str = "") -> Iterator[None]:
        """Nobody else submits from here meanwhile, or does anything with the job of this token."""
        # The lock is the kernel's: it goes with a process that is killed. Its file stays: were it removed, two
        # processes could each lock a file of this name.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder / f".{name}lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def keep(self, record: Record) -> Record:
        """Write a record, replacing what was known of the job."""
        write_json(self._folder / f"{record.token}.json", record.to_json())
        return record

    def all(self) -> list[Record]:
        """Every job, oldest first, without those that are `damaged`."""
        found = []
        for path in self._folder.glob("*.json"):
            if record := _parsed(path):
                found.append(record)
        return sorted(found, key=lambda record: record.submitted)

    def damaged(self) -> list[Path]:
        """Files of jobs that cannot be read."""
        return [path for path in sorted(self._folder.glob("*.json")) if _parsed(path) is None]

    def find(self, job: str) -> Record:
        """The job of this token, or of the one token that begins or ends so. Raises Failure(66) or (64)."""
        tokens = sorted(path.stem for path in self._folder.glob("*.json"))
        fitting = [one for one in tokens if one.startswith(job) or one.endswith(job)]
        if job in tokens:
            fitting = [job]
        if not _TOKEN.fullmatch(job) or not fitting:
            known = f"there is no job {job!r}{nearest(job, tokens)}"
            raise Failure(Exit.INPUT_MISSING, known, "`drivetrain jobs` lists them")
        if len(fitting) > 1:
            raise Failure(Exit.BAD_COMMAND, f"{job!r} is {', '.join(fitting)}", "give more of its name")
        return self._read(fitting[0])

    def known(self, token: str) -> Record | None:
        """The job of this token; None where it was not submitted from here. Raises Failure(65) for what is no token."""
        # Of an engine's answer, and part of a file's name here: it must not lead out of the folder.
        if not _TOKEN.fullmatch(token):
            raise Failure(Exit.BAD_DATA, f"{token!r} is no job's name", "it was not submitted by this program")
        if not (self._folder / f"{token}.json").exists():
            return None
        return self._read(token)

    def reload(self, record: Record) -> Record:
        """The record as it is now."""
        return self._read(record.token)

    def _read(self, token: str) -> Record:
        path = self._folder / f"{token}.json"
        record = _parsed(path)
        if record is None:
            raise Failure(Exit.BAD_DATA, f"{path} is damaged", "see that its job has ended, then move it away")
        return record


def _parsed(path: Path) -> Record | None:
    """The record of a file; None where it has none, or that of another file's job."""
    try:
        record = Record.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.token == path.stem else None


def _requested(record: Record) -> tuple[Any, ...]:
    job = record.work["job"]
    return record.settings, job["recipe"], job["resume"], job["override"]


def unfinished(records: list[Record], run: Path, target: str) -> Record | None:
    """The newest job of a target on this run directory that may not have ended: what its engine had forgotten, or may
    start again by itself, is to be looked at."""
    same = [one for one in records if one.run == run and one.target == target and not one.ended]
    return same[-1] if same else None
