"""How each golden run is made: commands, one after the other, and what is told to a run while it trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from golden import recipes

TESTS = Path(__file__).parent.parent
LOOK = 0.3
"""Seconds after which a run has surely looked for commands; it looks every 0.2 s."""


def command_line(arguments: Sequence[str], folder: Path) -> int:
    """The exit code of `drivetrain` with these arguments, as a user of this folder starts it."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "drivetrain", *arguments]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, **quiet, check=False).returncode


@dataclass
class Place:
    """A folder that runs are made in. `command` starts drivetrain there; `codes` are the exit codes, in their order."""

    folder: Path
    command: Callable[[Sequence[str], Path], int] = command_line
    codes: list[int] = field(default_factory=list)

    def train(self, *arguments: str) -> None:
        """One start of `drivetrain train`."""
        self.codes.append(self.command(["train", *arguments], self.folder))

    def write(self, recipe: recipes.Recipe) -> str:
        """The name of a recipe's file."""
        (self.folder / "recipe.json").write_text(json.dumps(recipe))
        return "recipe.json"


@dataclass(frozen=True)
class Golden:
    """A run that is recorded. `make` makes it in a folder of its own; `runs` are the directories that are looked at."""

    make: Callable[[Place], None]
    runs: tuple[str, ...] = ("run",)


def once(recipe: recipes.Recipe) -> Golden:
    """A run that one command makes."""
    return Golden(lambda place: place.train(place.write(recipe), "--run", "run"))


TOLD: Mapping[int, Sequence[tuple[str, str]]] = {
    4: [("set", "optimizer.lr=0.02"), ("set", "optimizer.lr=-1")],
    7: [("save", ""), ("evaluate", "")],
    11: [("pause", "")],
    14: [("set", "data.train.sources[name=a].weight=3"), ("pin", "")],
    18: [("stop", "")],
}
"""What a run is told in which step."""


def tell(place: Place) -> None:
    """Told to change, to save, to score, to pause and to stop; then on to its end, and made again with `--replay`."""
    (place.folder / "gates").mkdir()
    recipe = place.write(recipes.told(list(TOLD), "gates"))
    with _telling(place.folder):
        place.train(recipe, "--run", "run")
    place.train("run")
    place.train("run", "--replay")


@contextmanager
def _telling(folder: Path) -> Iterator[None]:
    """While entered, the run is told what `TOLD` has, in the step it is for."""
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(folder, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(folder: Path, ended: threading.Event) -> None:
    numbers = iter(range(100))
    for step, commands in TOLD.items():
        if not _comes((folder / "gates" / f"{step}-here").exists, ended):
            return
        for verb, argument in commands:
            post(folder / "run", next(numbers), verb, argument)
        time.sleep(LOOK)
        (folder / "gates" / f"{step}-go").touch()
        if commands[-1][0] == "pause":
            ledger = folder / "run" / "ledger.jsonl"
            _comes(lambda ledger=ledger: b'"verb":"pause"' in ledger.read_bytes(), ended)
            post(folder / "run", next(numbers), "resume", "")


def _comes(condition: Callable[[], bool], ended: threading.Event) -> bool:
    """Wait until this holds; False where the run has ended before."""
    while not condition():
        if ended.wait(0.02):
            return False
    return True


def post(run: Path, number: int, verb: str, argument: str) -> None:
    """Leave a command as `drivetrain control` does, under a name that is the same in every recording."""
    control = run / "control"
    control.mkdir(mode=0o700, exist_ok=True)
    hidden = control / ".told"
    hidden.write_text(json.dumps({"verb": verb, "argument": argument}))
    hidden.rename(control / f"{number:020d}-{number:016x}.json")


RUNS: Mapping[str, Golden] = {
    "quickstart": once(recipes.quickstart()),
    "gan": once(recipes.duel()),
    "galore": once(recipes.galore()),
    "blend": once(recipes.blend()),
    "guard": once(recipes.guard()),
    "exact-2": once(recipes.exact(2)),
    "exact-4": once(recipes.exact(4)),
    "killed": once(recipes.killed()),
    "told": Golden(tell, ("run", "run-replay")),
}


def make(golden: Golden, folder: Path, command: Callable[[Sequence[str], Path], int] = command_line) -> list[int]:
    """Make a golden run in an empty folder; the exit codes of its commands."""
    recipes.write_text(folder)
    place = Place(folder, command)
    golden.make(place)
    return place.codes
