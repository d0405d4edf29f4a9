"""What runs need whose plan is made beside them, however short they are: steps that wait for it."""

import os
import time
from pathlib import Path

from conftest import TEXT

TOKEN = "DRIVETRAIN_TESTS_PLANS"
"""In the environment of a run: by its value the process that plans is known among all others."""


class Patient:
    """Waits in every step from the fourth on, at most so long in all, until the ledger has a plan: on a busy machine
    longer and longer, so that few steps are enough."""

    def __init__(self, seconds: float = 300.0):
        self.seconds, self.waited, self.planned = seconds, 0.0, False

    def on_step(self, record):
        if record.step > 3 and not self.planned and self.waited < self.seconds:
            pause = max(0.25, self.waited / 20)
            time.sleep(pause)
            self.waited += pause

    def on_plan(self, record):
        self.planned = True


def recipe(tiny: dict, steps: int) -> dict:
    """A recipe of so many steps, the plan of which is worth making at any rate, and which waits for it."""
    more = {
        "callbacks": [{"kind": "plans:Patient"}],
        "telemetry": {"plan": 0.001},
        "checkpoint": {},
        "evaluate": {"batch": 256},
    }
    return tiny | more | {"budget": {"steps": steps}}


def planning() -> list[int]:
    """The processes that plan runs of this test."""
    token, found = f"{TOKEN}={os.environ[TOKEN]}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"plan_process" in (path / "cmdline").read_bytes() and token in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def corpus(folder: Path) -> Path:
    """A small folder of text."""
    (folder / "corpus").mkdir()
    for number in range(4):
        (folder / "corpus" / f"{number}.txt").write_text(TEXT[number * 999 :])
    return folder / "corpus"
