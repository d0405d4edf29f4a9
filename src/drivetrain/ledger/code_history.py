"""Which of the user's code made which steps of a run, from the records of its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drivetrain.ledger.records import AttemptRecord, CodeFileRecord, CodeRecord, Record

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class CodeStretch:
    """Steps of the history that counts which one state of the user's code has made: those after `from_step`, up to the
    next stretch.

    `digest` is None of attempts that kept no record of code; `attempt` is the first one with this code, `git` its
    commit. `files` are those of its start and those that came late, None where no record of them was kept.
    """

    from_step: int
    digest: str | None
    attempt: int
    git: str | None
    files: Mapping[str, CodeFileRecord] | None

    def __str__(self) -> str:
        git = f", git {self.git}" if self.git else ""
        return f"{self.digest or NOT_RECORDED} from step {self.from_step + 1} on{git}"


def code_stretches(records: Iterable[Record]) -> list[CodeStretch]:
    """The stretches in order; empty for a run of which no attempt has run code of the user's."""
    found: list[CodeStretch] = []
    for record in records:
        if isinstance(record, CodeRecord) and found:
            found[-1] = replace(found[-1], files={**record.files, **(found[-1].files or {})})
        # One that begins at the end of its budget makes no step.
        if not isinstance(record, AttemptRecord) or record.from_step >= record.budget.steps:
            continue
        # What came after the step that it goes on from is void.
        while found and found[-1].from_step >= record.from_step:
            found.pop()
        if not found or found[-1].digest != record.claim.code:
            found.append(_begun(record))
    if not any(stretch.digest for stretch in found):
        return []
    return found


def _begun(attempt: AttemptRecord) -> CodeStretch:
    """The stretch that an attempt with other code begins."""
    code = attempt.user_code
    git, files = (code.git, code.known) if code else (None, None)
    return CodeStretch(attempt.from_step, attempt.claim.code, attempt.attempt, git, files)


def different_files(one: Mapping[str, CodeFileRecord], other: Mapping[str, CodeFileRecord]) -> list[str]:
    """The names of the files that do not do the same in both, or that only one of them has."""
    names = []
    for name in sorted(one.keys() | other.keys()):
        was, now = one.get(name), other.get(name)
        if was is None or now is None or was.digest != now.digest:
            names.append(name)
    return names


def told(stretches: Sequence[CodeStretch]) -> list[str]:
    """A line for each stretch; of the later ones with the files that changed."""
    lines = []
    before: CodeStretch | None = None
    for stretch in stretches:
        changed = ""
        if before and before.files is not None and stretch.files is not None:
            names = ", ".join(different_files(before.files, stretch.files))
            changed = f": {names} changed" if names else ""
        lines.append(f"{stretch}{changed}")
        before = stretch
    return lines
