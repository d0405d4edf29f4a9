"""What a run may be told while it trains: the words of `drivetrain control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from drivetrain.spec.exits import Exit, Failure

Verb = Literal["pause", "resume", "save", "evaluate", "stop", "pin", "profile", "set"]
VERBS: tuple[str, ...] = get_args(Verb)
LONGEST = 10_000
"""Characters of an argument."""
_NEEDS = {"profile": "a number of steps", "set": "KEY=VALUE"}


@dataclass(frozen=True)
class Command:
    """One command. `argument` is KEY=VALUE of set, the number of steps of profile, and empty for the others."""

    verb: str
    argument: str = ""

    def __post_init__(self) -> None:
        """Raises Failure(64) where this is no command."""
        if self.verb not in VERBS:
            raise Failure(Exit.BAD_COMMAND, f"no command {self.verb[:40]!r}", f"there are {', '.join(VERBS)}, watch")
        needed = _NEEDS.get(self.verb)
        if bool(needed) != bool(self.argument) or len(self.argument) > LONGEST:
            raise Failure(
                Exit.BAD_COMMAND, f"{self.verb} takes {needed or 'nothing'}", f"such as {_example(self.verb)}"
            )
        # Cut, since Python refuses to read thousands of digits; nine of them are beyond the limit already.
        if self.verb == "profile" and not (self.argument.isdecimal() and 0 < int(self.argument[:9]) <= 10_000):
            raise Failure(Exit.BAD_COMMAND, f"profile {self.argument[:40]}", "give a number of steps from 1 to 10000")

    def __str__(self) -> str:
        return f"{self.verb} {self.argument}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """As it travels, and as the ledger has it."""
        return {"verb": self.verb, "argument": self.argument}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Command:
        """What `to_json` gave; Failure(64) where it is something else."""
        verb, argument = values.get("verb"), values.get("argument", "")
        if not isinstance(verb, str) or not isinstance(argument, str):
            raise Failure(
                Exit.BAD_COMMAND, "a command is a verb and an argument", f"there are {', '.join(VERBS)}, watch"
            )
        return cls(verb, argument)


def parse(words: Sequence[str]) -> Command:
    """The command that was typed. Raises Failure(64)."""
    if len(words) > 2:
        raise Failure(Exit.BAD_COMMAND, f"{' '.join(words)[:80]}: too many words", f"such as {_example(words[0])}")
    return Command(*words)


def _example(verb: str) -> str:
    return {"profile": "profile 20", "set": "set optimizer.lr=1e-4"}.get(verb, verb)
