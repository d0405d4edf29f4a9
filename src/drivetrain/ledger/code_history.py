"""Which of the user's code made which steps of a run, from the records of its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drivetrain.ledger.records import AttemptRecord, CodeFileRecord, Record, UserCodeRecord

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class CodeStretch:
    """Steps of the history that counts which one state of the user's code has made: those after `from_step`, up to the
    next stretch.

    `digest` is None of attempts that kept no record of code; `attempt` is the first one with this code.
    """

    from_step: int
    digest: str | None
    attempt: int
    code: UserCodeRecord | None

    def __str__(self) -> str:
        git = f", git {self.code.git}" if self.code and self.code.git else ""
        return f"{self.digest or NOT_RECORDED} from step {self.from_step + 1} on{git}"


def code_stretches(records: Iterable[Record]) -> list[CodeStretch]:
    """The stretches in order; empty for a run of which no attempt has run code of the user's."""
    found: list[CodeStretch] = []
    for record in records:
        # One that begins at the end of its budget makes no step.
        if not isinstance(record, AttemptRecord) or record.from_step >= record.budget.steps:
            continue
        # What came after the step that it goes on from is void.
        while found and found[-1].from_step >= record.from_step:
            found.pop()
        if not found or found[-1].digest != record.claim.code:
            found.append(CodeStretch(record.from_step, record.claim.code, record.attempt, record.user_code))
    if not any(stretch.digest for stretch in found):
        return []
    return found


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
        if before and before.code and stretch.code:
            files = ", ".join(different_files(before.code.files, stretch.code.files)) or "code that came late"
            changed = f": {files} changed"
        lines.append(f"{stretch}{changed}")
        before = stretch
    return lines
