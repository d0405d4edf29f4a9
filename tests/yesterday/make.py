"""How each of the runs was made. They are made in one fixed folder, since a run keeps the path of what it replays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from golden.record import environment
from golden.runs import command_line, post

DATA = Path(__file__).parent / "data"
EXPECTED = DATA / "expected.json"
FOLDER = Path("/tmp/drivetrain-yesterday")
SOON = 14
"""A step after which a run is killed: between its commits of steps 8 and 40."""


def train(*arguments: str, code: int = 0) -> None:
    """One start in the fixed folder. Raises AssertionError where it ends otherwise than with this code."""
    assert command_line(["train", *arguments], FOLDER) == code, arguments


def finished() -> None:
    train("recipe.json", "--run", "finished")


def killed() -> None:
    """All processes of it are killed at once, some steps after a commit."""
    command = [sys.executable, "-m", "drivetrain", "train", "recipe.json", "--run", "killed"]
    process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = FOLDER / "killed" / "ledger.jsonl"
    while not ledger.is_file() or ledger.read_bytes().count(b'"kind":"step"') < SOON:
        time.sleep(0.001)
    for one in [process, *psutil.Process(process.pid).children(recursive=True)]:
        one.kill()
    process.wait()
    assert b'"kind":"exit"' not in ledger.read_bytes(), "it was done before"


def told() -> None:
    """Told to change its rate after ten steps, and stopped while the change holds."""
    train("recipe.json", "--run", "told", "--steps", "10", code=75)
    post(FOLDER / "told", 0, "set", "optimizer.lr=0.02")
    train("recipe.json", "--run", "told", "--steps", "14", code=75)


def replay() -> None:
    """Stopped after it was told the same."""
    train("told", "--replay", "--run", "replay", "--steps", "18", code=75)


def two() -> None:
    train("recipe.json", "--run", "two", "--processes", "2", "--steps", "20", code=75)


RUNS: Mapping[str, Callable[[], None]] = {f.__name__: f for f in (finished, killed, told, replay, two)}
RESUME: Mapping[str, tuple[str, ...]] = {"finished": ("budget.steps=48", "--override", "budget")}
"""What a resume says beside the run's name: a run that is done needs more to do."""


def bits(run: Path) -> dict[str, str]:
    """The SHA-256 of each tensor file of the last commit."""
    manifest = max((run / "checkpoints").glob("step-*")) / "MANIFEST.json"
    files = json.loads(manifest.read_text().splitlines()[0])["files"]
    return {name: file["sha256"] for name, file in sorted(files.items()) if name.startswith("tensors")}


def make(names: list[str]) -> None:
    """Make these runs and keep them, and what they come to: resumed, and made again with the same commands."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(DATA, FOLDER)
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {"environment": environment(), "runs": {}}
    assert expected["environment"] == environment(), "make it where the others were made"
    for name in names:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        RUNS[name]()
        shutil.rmtree(DATA / name, ignore_errors=True)
        shutil.copytree(FOLDER / name, DATA / name)
        train(name, "--replay", "--run", "again")
        train(name, *RESUME.get(name, ()))
        expected["runs"][name] = {"resumed": bits(FOLDER / name), "replayed": bits(FOLDER / "again")}
        for folder in ("again", name):
            shutil.rmtree(FOLDER / folder)
        shutil.copytree(DATA / name, FOLDER / name)
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")
    shutil.rmtree(FOLDER)
