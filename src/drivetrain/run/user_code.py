"""The user's own code of a run: kept beside it, compared with what an earlier attempt has run, shown as a diff."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import partial
from pathlib import Path

from drivetrain.checkpoint.commits import LoadedCommit
from drivetrain.checkpoint.compatible import accepts
from drivetrain.launch.job import Job
from drivetrain.ledger.code_history import different_files
from drivetrain.ledger.records import AttemptRecord, CodeFileRecord, CodeRecord, UserCodeRecord
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.runtime.device import git_commit
from drivetrain.spec.code.kept import keep, kept
from drivetrain.spec.code.scan import CodeFile, UserCode, files_today, late
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.text import printable

_LINES = 60  # of a file's diff that are shown
_IMPORTED: dict[str, tuple[object, str]] = {}
"""By the place of a file: the spec of the module that was made of it, and the digest that the file had."""
_LATE: dict[tuple[str, ...], set[str]] = {}
"""By a recipe's own kinds: modules among which some came late when this process trained them."""
_KEY = "code"  # what `--override` calls it


Contents = Callable[[str], bytes | None]
"""What has the content of a file by its SHA-256, or None."""


@dataclass(frozen=True)
class CodeChange:
    """A file that does not do what it did; None where there was none, or is none any more."""

    name: str
    old: CodeFileRecord | None
    new: CodeFileRecord | None

    def __str__(self) -> str:
        name = printable(self.name)
        if self.old is None:
            return f"{name} (new)"
        return name if self.new else f"{name} (gone)"

    @property
    def bits(self) -> bool:
        """Whether it decides bits, then or now."""
        return any(side.affects == "bits" for side in (self.old, self.new) if side)


@dataclass(frozen=True)
class CodeIdentity:
    """Which code an attempt runs: the digest that its claim has, and the files that came late in this run before, as
    they are now; `changed` are those that are others than when they were found first."""

    digest: str
    late: Mapping[str, CodeFile] = field(default_factory=dict)
    changed: tuple[CodeChange, ...] = ()


def identity(code: UserCode, history: ResumeIndex) -> CodeIdentity:
    """What today's code is to a run. Late files count as they were found first, so a run that none of them has changed
    in has one digest from its first attempt on."""
    files = files_today(code, history.late_places)
    late = {name: files[name] for name in history.late_code if name in files}
    changed = changes(history.late_code, recorded(late))
    if not changed:
        return CodeIdentity(code.digest, late)
    # By what they are now: the same change made twice is one claim, and a change that is taken back is the first one
    # again.
    digests = [(change.name, change.new and change.new.digest) for change in changed]
    content = json.dumps([code.digest, digests])
    return CodeIdentity(hashlib.sha256(content.encode()).hexdigest()[:12], late, tuple(changed))


def accept(
    found: LoadedCommit, history: ResumeIndex, code: UserCode, today: CodeIdentity, override: Sequence[str], run: Path
) -> list[str]:
    """Notes on the code that has changed since a commit was made; Failure(76) with names and a diff where no
    `--override code` accepts it."""
    # What survivors have left tells no attempt: it is the newest one's.
    made = history.newest if found.volatile else history.tries.get(found.metadata["attempt"])
    was = found.metadata.get("user_code", "")
    if was == today.digest:
        return []
    # A note and no refusal: else no run of before could go on, though its code may be the same.
    if not was and (made is None or made.user_code is None):
        return [f"{found.path.name} was made before runs kept a record of their code, which may have been another"]
    before = made.user_code.files if made and made.user_code else {}
    changed = [change for change in changes(before, recorded(code.files)) if change.bits]
    seen = {change.name for change in changed}
    changed += [change for change in _late_changes(made, history, today) if change.name not in seen]
    names = ", ".join(map(str, changed)) or "files that came late"
    if accepts(override, _KEY):
        return [f"accepted by --override code: {names} changed since {found.path.name}: this is another claim"]
    failure = Failure(
        Exit.INCOMPATIBLE,
        f"{found.path.name} in {run} was made by other code: {names}",
        "restore the code, choose another --run, or go on with the new one by --override code",
    )
    failure.details = shown(changed, partial(kept, run), contents({**code.files, **today.late}))
    raise failure


def _late_changes(made: AttemptRecord | None, history: ResumeIndex, today: CodeIdentity) -> list[CodeChange]:
    """What of late code is not as the attempt had it that made a commit: an earlier one may have had other code, which
    was accepted since."""
    known = (made.user_code.late if made and made.user_code else None) or {}
    then = {name: known.get(name, first) for name, first in history.late_code.items()}
    return changes(then, recorded(today.late))


def require_code_of_command(code: UserCode, job: Job) -> None:
    """Raises Failure(76) where the code is no longer what it was when the command was given, as after an edit between
    two starts of the same processes."""
    if job.code and code.digest != job.code and not accepts(job.override, _KEY):
        cause = f"the code has changed since the command was given: {job.code} then, {code.digest} now"
        raise Failure(Exit.INCOMPATIBLE, cause, "give the command again: the code that is there now is another run")


def require_as_imported(code: UserCode) -> None:
    """Raises Failure(76) where a file has changed since this process imported it: what is in memory is no longer what
    the file says. Only a process that trains several times, such as a notebook's, can be in that state."""
    names = {file.place: name for name, file in code.files.items()}
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if place is None or place not in names:
            continue
        name, spec = names[place], getattr(module, "__spec__", None)
        now = (spec, code.files[name].digest)
        before = _IMPORTED.setdefault(place, now)
        if before[0] is spec and before != now:  # a reload gives a module another spec
            cause = f"{name} has changed since this process imported it"
            raise Failure(Exit.INCOMPATIBLE, cause, "start the process or the notebook's kernel anew, or reload it")
        _IMPORTED[place] = now


def record_of(
    code: UserCode, late: Mapping[str, CodeFile], folder: str | None, here: str | None
) -> UserCodeRecord | None:
    """What an attempt's record says of its code, and of what came `late` before; None where the recipe names none.
    `folder` is the recipe's, `here` the working folder's commit."""
    if not code.kinds:
        return None
    git = here
    # Most recipes lie where they are started from, and that folder has been asked already.
    if folder is not None and Path(folder).resolve() != Path.cwd():
        git = git_commit(folder)
    return UserCodeRecord(
        digest=code.digest,
        files=recorded(code.files),
        unread=code.unread,
        git=git,
        late=recorded(late) if late else None,
    )


def changes(old: Mapping[str, CodeFileRecord], new: Mapping[str, CodeFileRecord]) -> list[CodeChange]:
    """The files that do something else than they did."""
    found = []
    for name in different_files(old, new):
        found.append(CodeChange(name, old.get(name), new.get(name)))
    return found


def shown(changed: Sequence[CodeChange], old: Contents, new: Contents) -> str:
    """The changes as unified diffs, each cut after some lines. Of a file whose content is not there only that is said.

    `old` and `new` give the content of each side's files by SHA-256.
    """
    lines: list[str] = []
    for change in changed:
        before, after = _text(change.old, old), _text(change.new, new)
        if before is None or after is None:
            lines.append(f"{change}: its content was not kept, or is no text")
            continue
        name = printable(change.name)
        # Made printable after, line by line: an escape code in a file must not reach the terminal, and must show as a
        # change.
        raw = unified_diff(before, after, f"{name} (then)", f"{name} (now)", lineterm="")
        made = [printable(line, keep="\t") for line in raw]
        lines += made[:_LINES]
        if len(made) > _LINES:
            lines.append(f"... {len(made) - _LINES} more lines")
    return "\n".join(lines)


def contents(files: Mapping[str, CodeFile]) -> Contents:
    """The contents of files that are there."""
    return {file.sha256: file.content for file in files.values()}.get


class LateCode:
    """Finds, at each commit, code that was loaded since the start, and keeps it. Runs on the thread that commits."""

    def __init__(self, run: Path, code: UserCode, before: frozenset[str]) -> None:
        """`before` are the modules that were loaded before any code of this run was."""
        self._run, self._code = run, code
        # What came late when this process trained the same kinds before is there already.
        self._late = _LATE.setdefault(code.kinds, set())
        # Not `before` alone: a process that trains twice has loaded them already, and they would never look new again.
        self._seen = before - self._late
        self._told: list[dict[str, CodeFile]] = []

    def look(self) -> None:
        """Look at what has been loaded since the last time."""
        if not self._code.kinds:
            return
        loaded = sys.modules.keys() - self._seen
        self._seen |= loaded
        found = late(self._code, loaded)
        if found:
            self._late |= loaded
        if found:
            keep(self._run, found)
            self._told.append(found)

    def records(self, step: int) -> Iterator[CodeRecord]:
        """What was found and not yet told, for the ledger; the step is the commit's."""
        while self._told:
            files = self._told.pop(0)
            places = {name: file.place for name, file in files.items()}
            yield CodeRecord(step=step, files=recorded(files), places=places)


def recorded(files: Mapping[str, CodeFile]) -> dict[str, CodeFileRecord]:
    """What a ledger says of files."""
    told = {}
    for name, file in sorted(files.items()):
        told[name] = CodeFileRecord(digest=file.digest, sha256=file.sha256, affects=file.affects)
    return told


def _text(side: CodeFileRecord | None, contents: Contents) -> list[str] | None:
    """The lines of one side of a change; none where there is no file, None where its content is unknown or no text."""
    if side is None:
        return []
    content = contents(side.sha256)
    try:
        return None if content is None else content.decode().splitlines()
    except UnicodeDecodeError:
        return None
