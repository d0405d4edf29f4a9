"""Short real pretraining: GaLore beside AdamW at equal tokens, both tuned by the same sweep, over three seeds.

`python benchmarks/pretrain.py --text FILE`. A byte-level Llama (four layers of 128, 0.8 million parameters) on a text
of which the last tenth is held out. Each optimizer's learning rate is the best of four at seed 0; then seeds 1 to 3 are
trained with it. Told are validation losses in nats per byte, bytes of state, and time a step on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import drivetrain

SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1, "clip": 1.0},
    "galore": {
        "kind": "galore",
        "base": {"kind": "adamw", "betas": [0.9, 0.95]},
        "rank": 32,
        "gap": 50,
        "scale": 0.25,
        "weight_decay": 0.1,
        "clip": 1.0,
    },
}
SETTINGS["galore, 8 bits"] = SETTINGS["galore"] | {"base": {"kind": "adamw8bit", "betas": [0.9, 0.95]}}
RATES = {"adamw": (1.5e-3, 3e-3, 6e-3, 1.2e-2), "galore": (5e-3, 1e-2, 2e-2, 4e-2)}
SEEDS = (1, 2, 3)


def recipe(text: str, steps: int, seed: int, optimizer: dict[str, Any]) -> dict[str, Any]:
    """A run that is scored at its end."""
    source = {"kind": "tokens", "path": text, "dtype": "uint8", "split": [0.9, 0.1, 0.0], "by": "range"}
    return {
        "name": "pretrain",
        "seed": seed,
        "task": {
            "kind": "language_model",
            "model": {"kind": "llama", "vocabulary": 256, "width": 128, "depth": 4, "heads": 4, "context": 128},
        },
        "data": {
            "train": {"sources": [source | {"name": "text", "part": "train"}]},
            "validation": {"text": source | {"part": "validation"}},
        },
        "lanes": 4,
        "batch": {"size": 16, "micro": 16},
        "budget": {"steps": steps},
        "optimizer": optimizer,
        "schedule": {"kind": "cosine", "warmup": {"steps": steps // 10}, "floor": 0.1},
        "evaluate": {"batch": 64},
        "checkpoint": {"every": {"steps": steps}},
        "launch": {"threads": 1},
    }


def trained(folder: Path, text: str, steps: int, seed: int, optimizer: dict[str, Any]) -> tuple[float, float, int]:
    """Validation loss, seconds, and the bytes of the optimizer's state in the commit."""
    run = folder / f"{len(list(folder.iterdir()))}"
    began = time.perf_counter()
    result = drivetrain.train(recipe(text, steps, seed, optimizer), run=run, progress=False)
    seconds = time.perf_counter() - began
    commit = max((run / "checkpoints").glob("step-*"))
    tensors = [named for path in commit.glob("*.safetensors") for named in load_file(path).items()]
    state = sum(tensor.nbytes for name, tensor in tensors if name.startswith("optimizers/"))
    return result.metrics["text"]["loss"], seconds, state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), asked.text, asked.steps)


def report(folder: Path, text: str, steps: int) -> None:
    """The sweep, then the seeds."""
    best = {}
    for name, rates in RATES.items():
        losses = {}
        for lr in rates:
            losses[lr] = trained(folder, text, steps, 0, SETTINGS[name] | {"lr": lr})[0]
            print(f"{name}, lr {lr:g}, seed 0: {losses[lr]:.4f}", flush=True)
        best[name] = min(losses, key=losses.__getitem__)
    best["galore, 8 bits"] = best["galore"]
    means = {}
    for name, lr in best.items():
        found = [trained(folder, text, steps, seed, SETTINGS[name] | {"lr": lr}) for seed in SEEDS]
        losses = [loss for loss, _, _ in found]
        means[name] = statistics.mean(losses)
        each = ", ".join(f"{loss:.4f}" for loss in losses)
        print(
            f"{name}, lr {lr:g}: {means[name]:.4f} ({each}); {found[0][2] / 1e6:.2f} MB of state, "
            f"{statistics.median(seconds for _, seconds, _ in found) / steps * 1000:.0f} ms a step; "
            f"{means[name] / means['adamw']:.4f} of adamw's loss",
            flush=True,
        )


if __name__ == "__main__":
    main()
