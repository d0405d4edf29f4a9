"""A task whose every step begins with the same step of others, in the same processes, on the same batch.

What is not theirs is ours: forward to vote, and all that the loop does from one `update` to the next: it reads the
batch, keeps the ledger, agrees on boundaries. Each time ends with a barrier, so it is that of the slowest rank.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from peers import STEPS, ByHand, Saves

from drivetrain.checkpoint.commits import newest
from drivetrain.checkpoint.state import restore
from drivetrain.tasks.language_model.recipe import LanguageModel
from drivetrain.tasks.language_model.recipe import Llama as Settings
from drivetrain.tasks.language_model.task import LanguageModelTask

ASKED = json.loads(os.environ["MESH_BENCHMARK"])
"""What `run.py` asks for: model, steps, peers, every (steps from save to save, 0 for none), loads, folder."""
FOLDER = Path(ASKED["folder"])
OURS = "drivetrain"


def now() -> float:
    """Once all ranks are here, and their devices have done what they were told."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    dist.barrier()
    return time.perf_counter()


class Beside(LanguageModelTask):
    """Ours, with the others in turn."""

    def __init__(self) -> None:
        self.settings = Settings(**ASKED["model"])
        super().__init__(LanguageModel(model=self.settings))
        self.told: dict[str, list[float]] = {}
        self.began = 0.0
        self.peers: dict[str, ByHand] = {}

    def update(self, step) -> None:
        if not self.peers:
            device = step._engine.device
            self.peers = {name: STEPS[name](self.settings, device) for name in ASKED["peers"]}
            self.saves = Saves(self.peers["by hand"], FOLDER) if ASKED["every"] else None
        elif step.index > 1:
            self.tell(f"step, {OURS}", now() - self.began)
        batch = one_batch([micro.batch for micro in step._batch.micro_batches], step._engine.device)
        every, turn = ASKED["every"], list(self.peers)
        if every and step.index % every == 0:
            self.chunk("save", batch, lambda: self.saves.sync())
            self.chunk("async_save", batch, self.saves.beside)
        elif not every:
            for name in turn[step.index % len(turn) :] + turn[: step.index % len(turn)]:
                self.timed(f"step, {name}", lambda name=name: self.peers[name].step(batch))
        if step.index == ASKED["steps"]:
            self.finish(step)
        self.began = now()
        super().update(step)

    def chunk(self, name: str, batch: dict[str, torch.Tensor], save: Callable[[], object]) -> None:
        """A save by hand, and steps after it."""
        own = self.peers["by hand"]
        begun = now()
        done = save()
        self.tell(f"still, {name}", now() - begun)
        for _ in range(ASKED["every"]):
            self.timed(f"beside, {name}", lambda: own.step(batch))
        if done is not None:
            done = done.result()
        self.tell(f"there, {name}", (done or begun + self.told[f"still, {name}"][-1]) - begun)

    def finish(self, step) -> None:
        """Loads in turn, each of the newest commit and of the last save; then the file of all times."""
        engine = step._engine
        # The commit of the step before may still be under way beside this one.
        for _ in range(ASKED["loads"] if ASKED["every"] else 0):
            self.timed("load, dcp", self.saves.load)
            self.timed(f"load, {OURS}", lambda: load(engine))
        if dist.get_rank() == 0:
            (FOLDER / "told.json").write_text(json.dumps(self.told))

    def timed(self, name: str, work: Callable[[], object]) -> None:
        began = now()
        work()
        self.tell(name, now() - began)

    def tell(self, name: str, seconds: float) -> None:
        self.told.setdefault(name, []).append(seconds)


def load(engine) -> None:
    """What a resume does: every byte of the newest commit is checked, and what is this rank's put in its place."""
    found = newest(FOLDER / "run", engine.placement.group, whole=False, keep=True)
    tensors = found.read(engine.placement.box)
    restore(tensors, engine.networks, engine.optimizers, engine.others)


def one_batch(parts: list[dict[str, torch.Tensor]], device: torch.device) -> dict[str, torch.Tensor]:
    """This rank's samples in one micro-batch."""
    return {name: torch.cat([part[name] for part in parts]).to(device) for name in parts[0]}
