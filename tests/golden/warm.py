"""Commands for tests: given in this process, to runs whose processes are forked from one that has torch loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drills.runs import one_server
from drivetrain.cli.main import run


@contextmanager
def warm(folder: Path) -> Iterator[Callable[[Sequence[str], Path], int]]:
    """Within, this folder is the current one, and what is yielded stands for `golden.runs.command_line` there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with one_server():
            yield lambda arguments, _: run(list(arguments))
    finally:
        os.chdir(before)
