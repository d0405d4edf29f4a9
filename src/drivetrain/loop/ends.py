"""How a run ends before its budget does: exceptions that are raised at one boundary, on all ranks alike."""

from __future__ import annotations

from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure, Outcome


class EndAgreed(Exception):  # noqa: N818 - it is no error
    """All ranks end the run at this boundary, with `exit`; `why` is empty where a signal or another rank asked."""

    exit = Exit.DONE

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class StopAgreed(EndAgreed):
    """All ranks have heard a stop request, or follow the same plan to stop here. The run can go on later."""

    exit = Exit.STOPPED


class EarlyStop(EndAgreed):
    """The run is done before its budget ends: its scores do not become better."""


class NeverScored(EndAgreed):
    """All ranks end the run, whose state is committed: by what should say when to stop, nothing can be said."""

    exit = Exit.DIVERGED


def raise_leaders(group: Group, failure: Failure | None) -> None:
    """Raise the leader's failure on every rank, if it has one. Every rank calls it."""
    outcome = group.broadcast_json(failure.outcome.to_json() if failure else None)
    if outcome:
        raise Failure.of(Outcome.from_json(outcome))


def raise_first(group: Group, failure: Failure | None, code: int) -> None:
    """Raise, on every rank, the failure with this code of the lowest rank that has it. Every rank calls it."""
    outcomes = group.gather_json(failure.outcome.to_json() if failure else None)
    for outcome in outcomes:
        if outcome and outcome["code"] == code:
            raise Failure.of(Outcome.from_json(outcome))
    raise AssertionError(f"a rank asked for the end with code {code}, and none says why")
