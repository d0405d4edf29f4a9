"""Which weights of a commit a command takes."""

from __future__ import annotations

from typing import Literal

from drivetrain.spec.exits import Exit, Failure

WEIGHTS = "averaged or trained; by default those that training has scored."


def weights_of(given: str | None) -> Literal["averaged", "trained"] | None:
    """The option's value. Raises Failure(64) where it is neither."""
    if given in ("averaged", "trained", None):
        return given
    raise Failure(Exit.BAD_COMMAND, f"--weights {given}", "it is averaged or trained")
