"""What tests of submitted jobs share: commands as a user gives them, and jobs that can be waited for."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

import paced
from conftest import Trace, run_under_supervisor, trace
from drivetrain.cli.main import run
from drivetrain.spec.exits import Exit

HERE = Path(__file__).parent


@dataclass
class Desk:
    """A folder with recipes, targets and a store, as the user who works there sees them."""

    folder: Path
    capsys: object

    @property
    def gate(self) -> Path:
        """The file from which on paced runs hurry."""
        return self.folder / "gate"

    @property
    def run(self) -> Path:
        """The run directory of `submit`."""
        return self.folder / "run"

    def write(self, name: str, **task) -> str:
        """A recipe file of the paced task, which lies beside it."""
        shutil.copy(HERE / "paced.py", self.folder)
        (self.folder / name).write_text(yaml.safe_dump(paced.recipe(self.gate, **task)))
        return name

    def targets(self, **targets: dict) -> None:
        """What there is beside `local`."""
        (self.folder / "targets.yaml").write_text(yaml.safe_dump(targets))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What a command prints."""
        ended = run(list(arguments))
        out, err = self.capsys.readouterr()
        assert ended == code, (arguments, ended, out, err)
        return out if code == 0 else err

    def json(self, *arguments: str):
        """What a command tells programs."""
        return json.loads(self(*arguments, "--json"))

    def submit(self, recipe: str, *arguments: str, to: str) -> str:
        """Send a job and return its name."""
        return self.json("submit", recipe, "--to", to, "--run", str(self.run), *arguments)["job"]

    def until(self, job: str, *states: str, timeout: float = 90.0, step: int = 0, attempt: int = 0) -> dict:
        """How the job stands once it is in one of these states, at such a step and attempt or beyond."""
        end = time.monotonic() + timeout
        while True:
            now = self.json("status", job)
            if now["state"] in states and (now["step"] or 0) >= step and now["attempt"] >= attempt:
                return now
            ended = now["state"] in ("succeeded", "failed", "cancelled", "lost") and now["state"] not in states
            if ended or time.monotonic() > end:
                raise AssertionError(f"{now}\n{self('logs', job)}")
            time.sleep(0.1)

    def undisturbed(self, processes: int = 4, *overrides: str) -> Trace:
        """What a paced recipe comes to where nobody interferes; its pace decides no bit."""
        asked = (f"launch.processes={processes}", *overrides)
        if asked not in _UNDISTURBED:
            recipe = self.folder / "undisturbed.yaml"
            recipe.write_text(yaml.safe_dump(paced.recipe(HERE)))  # a gate that is there
            outcome = run_under_supervisor(recipe, self.folder / "straight", *asked)
            assert outcome.code == Exit.DONE, outcome
            _UNDISTURBED[asked] = trace(self.folder / "straight")
        return _UNDISTURBED[asked]


_UNDISTURBED: dict[tuple[str, ...], Trace] = {}
