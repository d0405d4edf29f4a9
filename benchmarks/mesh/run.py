"""Steps on a mesh beside FSDP2 by hand and by Accelerate; commits and loads beside torch's distributed checkpoint.

`python benchmarks/mesh/run.py`; `--reduced` is a small run that shows that all of it works. It makes its own
environment. A Llama of 20 million parameters on gloo, one thread a process, under `parallel: {shard: N}`: every step of
ours is taken in turn with the same step of the others, in the same processes and on the same batch, so a slow moment is
slow for all. Ours is the whole product, with ledger, vote and data; the others are handed the batch and read no loss.

`--device cuda` (or what torch calls the accelerator) measures there, one process for each device, by its own
collectives: it needs as many devices as processes, `--here` in an environment whose torch has the device, and leaves
Accelerate out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from environments import environment  # noqa: E402

MODEL = {"vocabulary": 8192, "width": 384, "depth": 10, "heads": 6, "context": 64}
REDUCED = {"vocabulary": 256, "width": 64, "depth": 2, "heads": 2, "context": 32}
BATCH = 8
SKIPPED = 3
OURS = "drivetrain"


def trained(folder: Path, processes: int, asked: dict[str, object]) -> None:
    """One run of ours; what was timed in it is in `told.json` of the folder."""
    import numpy as np

    import drivetrain

    model = asked["model"]
    path = folder / "tokens.bin"
    np.random.default_rng(0).integers(0, model["vocabulary"], 1_000_000, dtype=np.uint16).tofile(path)
    source = {"kind": "tokens", "path": str(path), "context": model["context"], "vocabulary": model["vocabulary"]}
    recipe = {
        "name": "mesh",
        "device": asked["device"],
        "task": {"kind": "beside:Beside"},
        "data": {"train": {"sources": [source]}},
        "batch": {"size": BATCH},
        "lanes": processes,
        "budget": {"steps": asked["steps"]},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "parallel": {"shard": processes},
        "checkpoint": {"every": {"steps": asked["every"] or 100_000}, "keep": 1},
        # Steps of others are no sign of life.
        "launch": {"processes": processes, "threads": 1, "hang_after": None},
        "watch": {"tensorboard": False},
    }
    drivetrain.train(recipe, run=folder / "run", progress=False)


def measured(python: Path, processes: int, asked: dict[str, object]) -> tuple[dict[str, list[float]], list[dict]]:
    """All times of a run, and its records of commits."""
    with tempfile.TemporaryDirectory(dir=asked["disk"]) as folder:
        text = json.dumps(asked | {"folder": folder})
        settings = os.environ | {"MESH_BENCHMARK": text, "OMP_NUM_THREADS": "1"}
        if asked["device"] == "cpu":
            settings["CUDA_VISIBLE_DEVICES"] = ""
        settings["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [str(python), __file__, "--train", str(processes)]
        done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{processes} processes: {done.stdout[-3000:]}")
        lines = (Path(folder) / "run" / "ledger.jsonl").read_text().splitlines()
        commits = [record for record in map(json.loads, lines) if record["kind"] == "commit"]
        return json.loads((Path(folder) / "told.json").read_text()), commits


def line(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    print(
        f"  {name:<34} {1e3 * statistics.median(ordered):8.1f} ms ({1e3 * ordered[0]:.1f} to {1e3 * ordered[-1]:.1f})"
    )


def show_steps(told: dict[str, list[float]], peers: list[str]) -> None:
    """Medians of steps, and of the ratios of those that were made in turn."""
    own = told[f"step, {OURS}"][SKIPPED:]
    line(f"step, {OURS}", own)
    for name in peers:
        # That of the others comes before ours in the same turn; the last one of theirs has none of ours behind it.
        theirs = told[f"step, {name}"][SKIPPED : SKIPPED + len(own)]
        line(f"step, {name}", theirs)
        ratios = sorted(a / b for a, b in zip(own, theirs, strict=True))
        quarters = statistics.quantiles(ratios, n=4)
        print(
            f"  {statistics.median(ratios):.3f} of the time of {name} (half of the pairs from {quarters[0]:.3f} to "
            f"{quarters[-1]:.3f})"
        )


def show_saves(told: dict[str, list[float]], commits: list[dict], every: int) -> None:
    """What training stands still for a save, when it counts, and by how much the steps after it are slower."""
    for name in ("save", "async_save"):
        line(f"stands still, {name}", told[f"still, {name}"])
        line(f"is there, {name}", told[f"there, {name}"])
        line(f"steps after it lose, {name}", lost(told[f"beside, {name}"], every))
    made = commits[:-1]  # the last one is made as the run ends
    line(f"stands still, {OURS}", [record["seconds"] for record in made])
    line(f"is there, {OURS}", [record["writing"] for record in made])
    line(f"all it costs steps, {OURS}", lost(told[f"step, {OURS}"][every - 1 :], every))
    line("load, dcp", told["load, dcp"])
    line(f"load, {OURS}", told[f"load, {OURS}"])
    ratios = [dcp / own for dcp, own in zip(told["load, dcp"], told[f"load, {OURS}"], strict=True)]
    print(f"  {statistics.median(ratios):.2f} of DCP's speed ({min(ratios):.2f} to {max(ratios):.2f}): verified load")


def lost(steps: list[float], every: int) -> list[float]:
    """By how much each group of so many steps was slower than its later half says."""
    groups = [steps[at : at + every] for at in range(0, len(steps) - every + 1, every)]
    return [sum(group) - every * statistics.median(group[every // 2 :]) for group in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, help="of each, in turn: 60, reduced 12")
    parser.add_argument("--saves", type=int, help="of each kind: 6, reduced 2")
    parser.add_argument("--every", type=int, default=12, help="steps from save to save")
    parser.add_argument("--peers", nargs="+", help="by default `by hand`, and on the CPU `accelerate`")
    parser.add_argument("--device", default="cpu", help="what torch calls the accelerator; default: cpu")
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this environment, which has all that is needed")
    parser.add_argument("--disk", help="a folder on the disk that is meant")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        given = json.loads(os.environ["MESH_BENCHMARK"])
        trained(Path(given["folder"]), asked.train, given)
        return
    python = Path(sys.executable) if asked.here else environment("mesh", "-r", str(HERE / "requirements.txt"))
    model, steps, saves = (REDUCED, 12, 2) if asked.reduced else (MODEL, 60, 6)
    steps, saves = asked.steps or steps, asked.saves or saves
    peers = asked.peers or ["by hand", *(["accelerate"] if asked.device == "cpu" else [])]
    common = {"model": model, "disk": asked.disk, "loads": 5, "device": asked.device}
    for processes in asked.processes:
        print(f"{processes} processes, steps of {BATCH} samples of {model['context']} tokens")
        told, _ = measured(python, processes, common | {"steps": steps, "every": 0, "peers": peers})
        show_steps(told, peers)
        # One more group than saves, since ours commits at the end of a step; and a step to load after it.
        saving = {"steps": (saves + 1) * asked.every - 1, "every": asked.every, "peers": ["by hand"]}
        show_saves(*measured(python, processes, common | saving), asked.every)


if __name__ == "__main__":
    main()
