"""What the board takes: `python benchmarks/board/run.py [NAME ...]`, of those in MEASURES; all where none is named.

Each figure is told with the machine's load before and after: others may work on it. Runs are written first, some 1.5 GB
for all; `--folder` keeps them for the next time. What a browser measures needs Playwright and Debian's Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import beside_tensorboard
import beside_training
import browser
import server
from ledgers import Runs

Figures: TypeAlias = dict[str, Any]
HERE = Path(__file__).parent
ROUNDS = 3


def of_index(runs: Runs, home: Path) -> Figures:
    """A ledger of a million steps, at two sizes of a record; medians of rounds in turn."""
    told: dict[str, list[Figures]] = {"plain": [], "wide": []}
    for _ in range(ROUNDS):
        for name, run in (("plain", runs.plain()), ("wide", runs.wide())):
            command = [sys.executable, str(HERE / "alone.py"), str(run)]
            told[name].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    return {name: medians(rounds) for name, rounds in told.items()}


def of_server(runs: Runs, home: Path) -> Figures:
    """The command over one long run, at two sizes of a record."""
    told = {}
    for name, run in (("plain", runs.plain()), ("wide", runs.wide())):
        rounds = [server.figures(run.parent, home / f"{name}-{number}") for number in range(ROUNDS)]
        told[name] = medians(rounds)
    return told


def of_many(runs: Runs, home: Path) -> Figures:
    """The command over many short runs."""
    return server.figures(runs.short(), home, runs.many)


def of_browser(runs: Runs, home: Path) -> Figures:
    """The page over one long run, at two sizes of a record."""
    told = {}
    for name, run, high in (("plain", runs.plain(), 1200), ("wide", runs.wide(), 900)):
        told[name] = browser.figures(run, home / name, high)
    return told


def of_tensorboard(runs: Runs, home: Path) -> Figures:
    """TensorBoard and the board, cold, over the same series of one long run."""
    return beside_tensorboard.figures(runs.plain(), home)


def of_training(runs: Runs, home: Path) -> Figures:
    """A run's steps with and without open pages."""
    return beside_training.figures(runs.plain(), home)


def of_report(runs: Runs, home: Path) -> Figures:
    """A long run as one file."""
    file = home / "report.html"
    command = [sys.executable, "-m", "drivetrain", "report", str(runs.plain()), "--html", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {"kilobytes": file.stat().st_size / 1e3}


MEASURES: dict[str, Callable[[Runs, Path], Figures]] = {
    "index": of_index,
    "server": of_server,
    "many": of_many,
    "browser": of_browser,
    "tensorboard": of_tensorboard,
    "training": of_training,
    "report": of_report,
}


def medians(rounds: list[Figures]) -> Figures:
    """The median of each figure."""
    return {name: statistics.median(told[name] for told in rounds) for name in rounds[0]}


def rounded(told: Any) -> Any:
    """Figures to three digits after the point, at any depth."""
    if isinstance(told, dict):
        return {name: rounded(value) for name, value in told.items()}
    return round(told, 3) if isinstance(told, float) else told


def measured(name: str, runs: Runs) -> Figures:
    """The figures of one name, with the load of the last minute before and after."""
    home, before = Path(tempfile.mkdtemp(prefix="bench-board-")), os.getloadavg()[0]
    try:
        told = MEASURES[name](runs, home)
    finally:
        shutil.rmtree(home)
    return rounded(told | {"load_before": before, "load_after": os.getloadavg()[0]})


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", default=list(MEASURES), metavar="NAME", help=", ".join(MEASURES))
    asked.add_argument("--steps", type=int, default=1_000_000, help="of the long runs")
    asked.add_argument("--runs", type=int, default=200, help="how many short ones")
    asked.add_argument("--each", type=int, default=10_000, help="steps of each of them")
    asked.add_argument("--folder", type=Path, help="where runs lie, and stay")
    given = asked.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-board-runs-"))
    runs = Runs(folder.resolve(), given.steps, given.runs, given.each)
    try:
        for name in given.names:
            print(json.dumps({name: measured(name, runs)}, indent=1), flush=True)
    finally:
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
