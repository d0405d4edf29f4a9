"""Checks of options that several commands have."""

from __future__ import annotations

from drivetrain.spec.exits import Exit, Failure


def require_resume(given: str) -> None:
    """Raises Failure(64) where `--resume` is none of its words."""
    if given not in ("auto", "never", "must"):
        raise Failure(Exit.BAD_COMMAND, f"--resume {given}", "it is auto, never or must")
