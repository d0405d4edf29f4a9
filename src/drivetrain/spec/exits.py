"""Exit codes, and the one exception that carries them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from drivetrain.spec.text import printable


class Exit(IntEnum):
    """Why a run ended; `docs/exit-codes.md` explains each to users."""

    DONE = 0
    BAD_COMMAND = 64
    BAD_DATA = 65
    INPUT_MISSING = 66
    PEER_UNAVAILABLE = 69
    INTERNAL = 70
    CANNOT_CREATE = 73
    STORAGE = 74
    STOPPED = 75
    INCOMPATIBLE = 76
    SECURITY = 77
    BAD_RECIPE = 78
    DIVERGED = 82
    CORRUPTION_SUSPECTED = 83
    HANG = 84
    OWNED_ELSEWHERE = 85
    NO_VALID_COMMIT = 86

    @property
    def title(self) -> str:
        """The code in words, as the last line on stderr shows it."""
        return _TITLES[self]

    @property
    def retryable(self) -> bool:
        """Whether a launcher may start the same command again by itself."""
        return self in _RETRYABLE


_TITLES = {
    Exit.DONE: "done",
    Exit.BAD_COMMAND: "bad command",
    Exit.BAD_DATA: "bad data",
    Exit.INPUT_MISSING: "input missing",
    Exit.PEER_UNAVAILABLE: "rendezvous or peer unavailable",
    Exit.INTERNAL: "internal error",
    Exit.CANNOT_CREATE: "cannot create run directory",
    Exit.STORAGE: "storage error",
    Exit.STOPPED: "stopped and committed, start again to go on",
    Exit.INCOMPATIBLE: "incompatible resume",
    Exit.SECURITY: "security refusal",
    Exit.BAD_RECIPE: "bad recipe",
    Exit.DIVERGED: "numeric divergence",
    Exit.CORRUPTION_SUSPECTED: "suspected silent corruption",
    Exit.HANG: "hang",
    Exit.OWNED_ELSEWHERE: "run directory owned by another run",
    Exit.NO_VALID_COMMIT: "no valid commit left",
}
_CLASSES = {
    (Exit.INTERNAL, "own code"): "error in your own code",
    (Exit.INTERNAL, "oom"): "out of memory",
    (Exit.STOPPED, "interrupted"): "interrupted",
}
"""What a code is called instead, by the `class` that an outcome's `where` has."""
# What the same command may not meet again: a peer, a disk, a bit, a pause. Code, data and recipe stay as they are.
_RETRYABLE = {Exit.PEER_UNAVAILABLE, Exit.STORAGE, Exit.STOPPED, Exit.CORRUPTION_SUSPECTED, Exit.HANG}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one process, or a whole run, ended: the content of `exit.json`.

    `where` holds what is known of: file, line, rank, step, phase, sample_ids, last_committed_step. `raised` is the
    exception behind it, in the process that met it.
    """

    code: Exit
    cause: str
    hint: str = ""
    where: dict[str, Any]
    raised: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def title(self) -> str:
        """The code in words; of an error in the user's own code and of too little memory, those words."""
        return _CLASSES.get((self.code, self.where.get("class", "")), self.code.title)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `exit.json`; `class` is the code in words."""
        told = {"cause": self.cause, "hint": self.hint, "where": dict(self.where)}
        return {"code": int(self.code), **told, "class": self.title}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        """The outcome that `to_json` described."""
        return cls(code=Exit(fields["code"]), cause=fields["cause"], hint=fields["hint"], where=fields["where"])

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """The outcome in an `exit.json`. Raises OSError, ValueError or KeyError where there is none."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    def line(self) -> str:
        """The last line on stderr."""
        return f"drivetrain: {self.sentence()}"

    def sentence(self) -> str:
        """Code, cause, place, hint. What files and columns are called may be in it: none of that steers a terminal."""
        text = f"{int(self.code)} {self.title}"
        if self.cause:
            text += f": {self.cause.rstrip('.')}"
        said = {"class"}
        if f"{self.where.get('file')}:{self.where.get('line')}" in self.cause:
            said |= {"file", "line"}
        known = [f"{name} {value}" for name, value in self.where.items() if value is not None and name not in said]
        if known:
            text += f" ({', '.join(known)})"
        if self.hint:
            # A cause may end with a guess, such as `did you mean 'optimizer'?`.
            stop = "" if text.endswith("?") else "."
            text += f"{stop} {self.hint}"
        return printable(text, "\n\t")


class Failure(Exception):  # noqa: N818 - it also carries ends that are no error, such as 75
    """Ends a run with a documented exit code, a cause, a place and a hint.

    `details` are lines to print before the one that says all of that, where there is more to say; `trace` is the whole
    traceback, where it is worth keeping.
    """

    details = ""
    trace = ""

    def __init__(self, code: Exit, cause: str, hint: str = "", **where: Any) -> None:
        super().__init__(cause)
        self.outcome = Outcome(code=code, cause=cause, hint=hint, where=where)

    def __str__(self) -> str:
        """What the last line of a traceback, and so a notebook, shows of it."""
        return self.outcome.sentence()

    @classmethod
    def of(cls, outcome: Outcome) -> Failure:
        """The failure that ends with this outcome."""
        return Failure(outcome.code, outcome.cause, outcome.hint, **outcome.where)

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers send it to the process that waits for them."""
        # An exception is pickled by its arguments, which a Failure's `where` would be lost with; what it was raised by
        # may not be picklable.
        return _sent, (replace(self.outcome, raised=None), self.details, self.trace)


def _sent(outcome: Outcome, details: str, trace: str) -> Failure:
    failure = Failure.of(outcome)
    failure.details, failure.trace = details, trace
    return failure
