"""The loop benchmark's training with and without open pages of the board, in turn: time of a step; the board's part."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from browser import Page, Times, chromium, curves_of, entered
from ledgers import write
from server import Served, serving, spent

HERE = Path(__file__).parent
PAGES, ROUNDS, STEPS, HIGH = 20, 5, 12_000, 1200


class Trainer:
    """A process that trains the loop benchmark's network whenever it is asked to."""

    def __init__(self, runs: Path) -> None:
        # A run directory of the loop benchmark is a temporary one.
        environment = os.environ | {"TMPDIR": str(runs), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(HERE / "train.py"), str(STEPS)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def begin(self) -> None:
        """Train from now on."""
        assert self._process.stdin
        self._process.stdin.write("train\n")
        self._process.stdin.flush()

    def end(self) -> Times:
        """Microseconds of a step, once all are made: median and mean."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("training failed")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def figures(run: Path, home: Path) -> dict[str, Any]:
    """Medians of rounds in which all ways take turns, ratios to training alone, and what the board takes idle."""
    runs, taken = home / "runs", {alone: [], tabs: [], windows: []}
    write(runs / "another", 1000)
    trainer = Trainer(runs)
    try:
        alone(trainer, runs, home)
        for number in range(ROUNDS):
            for way in list(taken)[:: 1 if number % 2 == 0 else -1]:
                taken[way].append(way(trainer, runs, home))
    finally:
        trainer.close()
    told: dict[str, Any] = {}
    for way, rounds in taken.items():
        told[way.__name__] = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        for name in ("median_us", "mean_us"):
            ratios = [own[name] / plain[name] for plain, own in zip(taken[alone], rounds, strict=True)]
            told[way.__name__][f"ratio_of_{name}"] = [min(ratios), statistics.median(ratios), max(ratios)]
    return told | {"idle_core_percent": idle(run, home)}


def alone(trainer: Trainer, runs: Path, home: Path) -> Times:
    """No board."""
    trainer.begin()
    return trainer.end()


def tabs(trainer: Trainer, runs: Path, home: Path) -> Times:
    """A board with pages that show the run's curves, of which one is in front."""
    return watched(trainer, runs, home, behind=PAGES - 1)


def windows(trainer: Trainer, runs: Path, home: Path) -> Times:
    """A board with pages that are all in sight, and draw on the cores that train."""
    return watched(trainer, runs, home, behind=0)


def watched(trainer: Trainer, runs: Path, home: Path, behind: int) -> Times:
    """So many of the pages are behind others."""
    with serving(runs, home) as board, chromium() as browser:
        pages = opened(browser, board)
        trainer.begin()
        show(pages, new_run(board))
        for page in pages[:behind]:
            # A browser without windows hides no page: it is told that it is hidden.
            page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
        began, before = time.perf_counter(), spent(board.process)
        told = trainer.end()
        share = (spent(board.process) - before) / (time.perf_counter() - began)
        return told | {"board_core_percent": 100 * share}


def idle(run: Path, home: Path) -> float:
    """What of one core the board takes with as many pages of a run in which nothing happens."""
    with serving(run.parent, home) as board, chromium() as browser:
        pages = opened(browser, board)
        show(pages, board.run()["id"])
        for page in pages:
            page.wait_for_selector("main[data-shown]")
        time.sleep(2)
        return board.idle_percent(20)


def opened(browser: Any, board: Served) -> list[Page]:
    """Windows of one browser, at the table."""
    first = entered(browser, board, HIGH)
    pages = [first, *(first.context.new_page() for _ in range(PAGES - 1))]
    for page in pages[1:]:
        page.goto(f"{board.base}/")
        page.wait_for_selector("body[data-ready]")
    return pages


def new_run(board: Served) -> str:
    """The run that has begun."""
    while True:
        for row in board.rows():
            if row["name"] != "another" and row["step"]:
                return row["id"]
        time.sleep(0.1)


def show(pages: list[Page], id: str) -> None:
    """Have all of them show a run's curves."""
    for page in pages:
        page.evaluate("(to) => { location.hash = to; }", curves_of(id))
