"""Steps that are made again: whether they must come to the same numbers, and whether they did."""

from __future__ import annotations

from drivetrain.ledger.records import AttemptRecord, CommandRecord, Record, RollbackRecord, StepRecord

PROMISES = ("claim", "recipe", "data", "environment")
"""What two attempts must have in common for the same bits to be promised."""
NUMBERS = ("start", "stop", "samples", "counts", "losses", "norm", "lr", "skipped", "scale", "weights")
"""What a step that is made again must tell again."""


COUNTED = "counted"
"""The class of a claim where a stream is read again to where it was: only if it repeats itself the samples are those of
before, so that no bits are promised from one attempt to another."""


def comparable(one: AttemptRecord, other: AttemptRecord) -> bool:
    """Whether two attempts promise the same bits."""
    if one.claim.class_ == COUNTED:
        return False
    return all(getattr(one, name) == getattr(other, name) for name in PROMISES)


def unequal(one: StepRecord, other: StepRecord) -> str:
    """The first of a step's numbers that two records tell differently, with both; empty where there is none."""
    first, then = one.to_json(), other.to_json()  # where a number that is none equals itself
    for name in NUMBERS:
        if first.get(name) != then.get(name):
            return f"{name}: {first.get(name)}, then {then.get(name)}"
    return ""


def still_promised(made: dict[int, StepRecord], record: Record) -> dict[int, StepRecord]:
    """Those of the steps that were made before, by number, which hold after a record. After a rollback others are made
    of other samples, after a `set` that was not given before with other settings."""
    match record:
        case RollbackRecord():
            last = record.to
        case CommandRecord(verb="set", refused=None) if not record.replayed:
            last = record.step
        case _:
            return made
    return {step: earlier for step, earlier in made.items() if step <= last}
