"""torch's profiler around the steps that a recipe names: a trace to look at, and a table of what took longest."""

from __future__ import annotations

import gzip
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch
from torch.profiler import profile, record_function

from drivetrain.loop.recipe import Profile
from drivetrain.spec.files import write_private

FOLDER = "profile"
_ROWS = 50  # of the table


class Window:
    """The steps under the profiler, on this rank; a run that begins behind them does nothing.

    It watches and decides no bit. Files are written after the last step, while training stands still.
    """

    def __init__(self, settings: Profile, rank: int, device: torch.device, run: Path) -> None:
        self.steps = range(settings.start, settings.start + settings.steps)
        self._ranks = settings.ranks
        self._mine = rank in settings.ranks
        self._rank = rank
        self._sort = "self_cpu_time_total" if device.type == "cpu" else "self_device_time_total"
        self._run = run
        self._profiler: profile | None = None
        self._step: record_function | None = None
        self._first = 0  # the first step that was watched; 0 where none is, on any rank

    def before(self, step: int) -> None:
        """A step begins: watch it if it is one of them."""
        if step not in self.steps:
            return
        if not self._first:
            self._first = step
            if self._mine:
                self._profiler = profile()
                self._profiler.start()
        if self._mine:
            self._step = record_function(f"step {step}")
            self._step.__enter__()

    def after(self, step: int) -> str:
        """A step has ended; after the last one what `close` says."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if step != self.steps[-1]:
            return ""
        return self.close(step)

    def close(self, step: int) -> str:
        """Stop and write what was watched up to this step, and say where all ranks leave it; "" where nothing was.

        Raises OSError where it cannot be written.
        """
        first, self._first = self._first, 0
        profiler, self._profiler = self._profiler, None
        if not first:
            return ""
        if profiler is not None:
            profiler.stop()
            self._write(profiler, _name(first, self._rank))
        names = [f"{FOLDER}/{_name(first, rank)}" for rank in self._ranks]
        return f"profile of steps {first} to {step}: " + ", ".join(f"{name}.json.gz, {name}.txt" for name in names)

    def drop(self) -> None:
        """Stop without writing: the run ends with an error, which nothing here may hide."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with suppress(Exception):
                profiler.stop()

    def _write(self, profiler: profile, name: str) -> None:
        folder = self._run / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        raw, packed = folder / f".{name}.json", folder / f".{name}.json.gz"
        try:
            profiler.export_chrome_trace(str(raw))
            with raw.open("rb") as plain, _private(packed) as file, gzip.open(file, "wb", 1) as trace:
                shutil.copyfileobj(plain, trace, 1 << 20)
            os.replace(packed, folder / f"{name}.json.gz")
        finally:
            raw.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        table = profiler.key_averages().table(sort_by=self._sort, row_limit=_ROWS, max_name_column_width=80)
        write_private(folder / f"{name}.txt", table.encode())


def _name(first: int, rank: int) -> str:
    return f"step-{first:08d}-rank-{rank}"


def _private(path: Path) -> IO[bytes]:
    """A new file that only this user can read, for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")
