"""The web page over runs: reads run directories, and steers by the commands that `drivetrain control` gives."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drivetrain.board.notebook import LiveCurves


class _Room(ModuleType):
    """`drivetrain.board` names the room, and shows curves in a notebook where it is called."""

    def __call__(self, *runs: str | Path, curves: Sequence[str] | None = None, by: str = "step") -> LiveCurves:
        """See `drivetrain.board.notebook.board`."""
        from drivetrain.board.notebook import board

        return board(*runs, curves=curves, by=by)


sys.modules[__name__].__class__ = _Room
