"""A shipped decoder whose samples can go wrong, so that all that a run does can be looked at on every mesh."""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import torch

from drivetrain.data.order import Order
from drivetrain.runtime.together import added, once
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama, Sample
from drivetrain.tasks.language_model.task import LanguageModelTask
from drivetrain.worker import main

SAMPLES, CONTEXT = 240, 16
MODEL = Llama(width=16, depth=2, heads=2, context=CONTEXT, dropout=0.1)
MESHES = {
    "shard": {"shard": 2},
    "tensor": {"tensor": 2},
    "replicate x shard": {"replicate": 2, "shard": 2},
    "shard x tensor": {"shard": 2, "tensor": 2},
    "pipeline": {"pipeline": 2},
    "pipeline x shard": {"pipeline": 2, "shard": 2},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2},
    "context": {"context": 2},
    "context x shard": {"context": 2, "shard": 2},
    "context x tensor": {"context": 2, "tensor": 2},
    "context x pipeline": {"context": 2, "pipeline": 2},
}


class Windows:
    """Windows of bytes that go up by one; the first byte is the number of the sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index, *(np.arange(CONTEXT) + 7 * index) % 256])


class Decoder(LanguageModelTask):
    """`nan` and `spike` are the samples whose loss is not finite, or a thousand times too large."""

    def __init__(self, nan: list = (), spike: list = ()):
        super().__init__(LanguageModel(model=MODEL, sample=Sample(prompt="abc", tokens=20, temperature=0)))
        self._bad = {float("nan"): nan, 1000.0: spike}

    def collate(self, samples):
        batch = super().collate(samples)
        return batch | {"numbers": batch["tokens"][:, 0].clone()}  # whoever has the first positions

    def loss_from(self, output, batch):
        losses = super().loss_from(output, batch)
        if output.requires_grad:  # while it trains
            for factor, samples in self._bad.items():
                if torch.isin(batch["numbers"], torch.tensor(samples, dtype=torch.long)).any():
                    losses["loss"] = losses["loss"]._replace(value=losses["loss"].value * factor)
        return losses


class Helped(Decoder):
    """Asks something of all processes: to make a file once, and how many samples a step has."""

    def __init__(self, folder: str):
        super().__init__()
        self._file = Path(folder) / "made"

    def networks(self):
        once(self._made)
        return super().networks()

    def _made(self) -> str:
        if self._file.exists():
            return self._file.read_text()
        with self._file.open("x") as file:  # an error where another process is making it
            time.sleep(0.1)
            file.write("by one")
        return ""

    def update(self, step):
        own = sum(micro.size for micro in step._batch.micro_batches)
        assert (added(own), self._file.read_text()) == (8.0, "by one")
        super().update(step)


def laid_out(sizes: dict) -> tuple[str, str]:
    """What a mesh of these sizes asks of a recipe."""
    world = int(np.prod(list(sizes.values())))
    return f"launch.processes={world}", f"parallel={sizes}".replace("'", "")


def ids_of(step: int, first: int, last: int) -> list[int]:
    """The samples at these places of a step."""
    return Order(SAMPLES, 0, True).ids((step - 1) * 8 + first, (step - 1) * 8 + last).tolist()


def recipe(**task) -> dict:
    """Twenty steps of four micro-batches, of which a run tells all that it can tell."""
    return {
        "name": "meshed",
        "task": {"kind": "meshed:Decoder", **task},
        "data": {
            "train": {"sources": [{"kind": "meshed:Windows"}]},
            "validation": {"windows": {"kind": "meshed:Windows"}},
        },
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 20},
        "optimizer": {"kind": "adamw", "lr": 1e-2, "clip": 1.0},
        "schedule": {"kind": "cosine", "warmup": {"steps": 2}},
        "checkpoint": {"every": {"steps": 20}},
        "evaluate": {"every": {"steps": 10}, "batch": 60},
        "launch": {"threads": 1},
    }


def watched(job, place, descriptors):
    """A worker that leaves the classes which were looked up for a pickle from its start to its end."""
    looked_up: list[str] = []
    sys.addaudithook(lambda event, told: looked_up.append(str(told)) if event == "pickle.find_class" else None)
    code = main(job, place, descriptors)
    (Path(job["folder"]) / f"unpickled-{place['rank']}.json").write_text(json.dumps(looked_up))
    pickle.loads(pickle.dumps(Path()))
    assert looked_up, "whoever watches sees it"
    return code
