"""How long `drivetrain verify` takes for a run of ten million samples. One command: `python benchmarks/verify.py`.

The run is a real one of a network with a single weight, on a file of tokens; everything that `verify` proves is there.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import drivetrain
from drivetrain.ledger.ledger import read


class Tiny(drivetrain.Task):
    """The least that can be trained."""

    def networks(self):
        return {"model": nn.Linear(1, 1)}

    def collate(self, samples):
        return torch.from_numpy(samples[:, :1].astype(np.float32))

    def loss(self, nets, batch):
        return nets["model"](batch[:8]).square().mean()


def train(folder: Path, samples: int, batch: int) -> Path:
    """The run directory."""
    path = folder / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, samples + 1, dtype=np.uint16).tofile(path)
    recipe = {
        "name": "verify",
        "task": {"kind": "verify:Tiny"},
        "data": {"train": {"sources": [{"kind": "tokens", "path": str(path), "context": 1}]}},
        "batch": {"size": batch},
        "budget": {"samples": samples},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": {"steps": 5000}},
        "watch": {"tensorboard": False},
        "launch": {"threads": 1},
    }
    return drivetrain.train(recipe, run=folder / "run", progress=False).run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 64])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for batch in asked.batches:
        with tempfile.TemporaryDirectory() as folder:
            run = train(Path(folder), asked.samples, batch)
            taken, reading = [], []
            for _ in range(asked.rounds):
                began = time.perf_counter()
                steps = drivetrain.verify(run)["steps"]
                taken.append(time.perf_counter() - began)
                began = time.perf_counter()
                sum(1 for _ in read(run / "ledger.jsonl"))
                reading.append(time.perf_counter() - began)
            print(
                f"{asked.samples:,} samples in {steps:,} steps of {batch}: {statistics.median(taken):.2f} s "
                f"({min(taken):.2f} to {max(taken):.2f}); reading the ledger alone {statistics.median(reading):.2f} s"
            )


if __name__ == "__main__":
    main()
