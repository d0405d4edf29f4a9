"""Whether a run on a mesh that is stopped and goes on has the same bits here, and how far it uses the devices (MFU).

`python benchmarks/mesh/resume.py --processes 8 [--parallel 'replicate: 2, shard: 4']`; `--reduced` is a small run that
shows that all of it works, on a CPU too. By default it trains on the accelerator that torch finds, one process for each
device, so that its collectives (NCCL's, say) are what is tried. It ends with 1 where a bit differs.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import drivetrain
from drivetrain.checkpoint.inspection import difference
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord, StepRecord
from drivetrain.ledger.throughput import Throughput, of_work, work

MODEL = {"vocabulary": 32000, "width": 1024, "depth": 24, "heads": 16, "context": 1024}
REDUCED = {"vocabulary": 256, "width": 64, "depth": 2, "heads": 2, "context": 32}
SKIPPED = 3
"""Steps at the start whose time does not count."""


def recipe(asked: argparse.Namespace, tokens: Path) -> dict:
    """A decoder on random tokens; a third of a billion parameters where it is not reduced."""
    model = REDUCED if asked.reduced else MODEL
    source = {"kind": "tokens", "path": str(tokens), "context": model["context"], "vocabulary": model["vocabulary"]}
    size = 8 * asked.processes
    return {
        "name": "resume",
        "device": asked.device,
        "precision": asked.precision,
        "task": {"kind": "language_model", "model": {"kind": "llama", **model}},
        "data": {"train": {"sources": [source]}},
        "batch": {"size": size, "micro": 4},
        "lanes": asked.processes,
        "budget": {"steps": asked.steps},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "launch": {"processes": asked.processes},
        "watch": {"tensorboard": False},
    }


def rates(run: Path) -> Throughput:
    """Those of the run's only attempt, without its first steps."""
    records = list(lineage(read(run / "ledger.jsonl")))
    (attempt,) = [record for record in records if isinstance(record, AttemptRecord)]
    steps = [work(record) for record in records if isinstance(record, StepRecord)][SKIPPED:]
    seconds, samples, tokens = map(sum, zip(*steps, strict=True))
    return of_work(seconds, samples, tokens, attempt)


def losses(run: Path) -> list[dict[str, float]]:
    """Of each step."""
    return [dict(record.losses) for record in lineage(read(run / "ledger.jsonl")) if isinstance(record, StepRecord)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parallel", default="shard: auto", help="the mesh, as in a recipe")
    parser.add_argument("--device", default="auto", help="as in a recipe: auto is the accelerator, where there is one")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--reduced", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = (REDUCED if asked.reduced else MODEL)["vocabulary"]
        drawn = np.random.default_rng(0).integers(0, vocabulary, 20_000_000, dtype=np.uint16)
        drawn.tofile(folder / "tokens.bin")
        settings, mesh = recipe(asked, folder / "tokens.bin"), f"parallel={{{asked.parallel}}}"
        for run, stops in (("straight", [[]]), ("halves", [[asked.steps // 2], []])):
            for stop in stops:
                drivetrain.train(settings, [mesh, f"stop.at={stop}"], run=folder / run, progress=False)
        apart = difference(folder / "straight", folder / "halves")
        same = not apart.tensors and losses(folder / "straight") == losses(folder / "halves")
        found = rates(folder / "straight")
    told = "the peak of this device is not known" if found.mfu is None else f"MFU {found.mfu:.1%}"
    print(f"{found.tokens_per_second:,.0f} tokens/s, {told}")
    for tensor, how in apart.tensors.items():
        print(f"{tensor}: {how}")
    print(f"{apart.equal} tensors and {asked.steps} losses are the same bits" if same else "resumed, it has other bits")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
