"""What a task shows: texts to look at, kept in the run directory and in the ledger."""

from __future__ import annotations

import re
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Gallery:
    """Collects what is shown at one step, under `gallery/step-XXXXXXXX/` of the run directory."""

    def __init__(self, run: Path, step: int) -> None:
        self.step = step
        self.texts: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self._run = run
        self._folder = Path("gallery") / f"step-{step:08d}"

    def text(self, name: str, text: str) -> None:
        """Show a text; it is also written to `<name>.txt`.

        Raises Failure(77) for a name that is not letters, digits, '.', '_' and '-'.
        """
        if not _NAME.fullmatch(name):
            raise Failure(Exit.SECURITY, f"gallery name {name!r} is no plain file name", "use letters, digits, . _ -")
        relative = self._folder / f"{name}.txt"
        path = self._run / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode())
        self.texts[name] = text
        self.files[name] = str(relative)
