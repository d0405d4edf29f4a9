"""A step with embedding tables beside torch's own layers and fbgemm's kernels: `python benchmarks/ranking/step.py`.

26 tables of 100,000 rows of 16 numbers, one to three ids of each in a sample, 4,096 samples a step, and a dense part
that is the same for all. Every step of ours begins with a step of each of the others, so that a slow moment is slow for
all. Ours is the whole product: data, vote, clip and ledger, with its own tables and with those on TorchRec (which have
no clip); the others are handed the batch. `--processes 2` puts it beside TorchRec's sharded tables, by hand and through
its pipeline. `--memory` tells what a process holds where 1, 2 and 4 share the tables. `--reduced` shows that all of it
works; fbgemm and TorchRec are left out, and said so, where they cannot be had. It makes its own environment.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from environments import environment  # noqa: E402

WHOLE = {"tables": 26, "rows": 100_000, "dim": 16, "batch": 4096, "steps": 40}
REDUCED = {"tables": 4, "rows": 1000, "dim": 8, "batch": 256, "steps": 10}
SKIPPED = 4
PAIRS = {"sgd": ("plain sgd", "fbgemm sgd"), "adagrad": ("plain adagrad", "fbgemm adagrad")}
PAIRS |= {"rowwise_adagrad": ("plain adagrad", "fbgemm rowwise_adagrad"), "adam": ("plain adam",)}
"""Whom each optimizer of ours is held against. Torch has no row-wise Adagrad; its Adagrad is the nearest."""
SHARED = {
    name: (f"torchrec hand {name}", f"torchrec pipeline {name}") for name in ("sgd", "adagrad", "rowwise_adagrad")
}
"""The same where several processes share the tables."""


def trained(asked: dict, folder: Path) -> None:
    """One run of ours; what was timed in it is in `told.json` of the folder."""
    import drivetrain

    recipe = {
        "name": "step",
        "task": {"kind": "beside:Beside"},
        "data": {"train": {"sources": [{"kind": "beside:Clicks"}], "shuffle": False}},
        "lanes": asked["processes"],
        "batch": {"size": asked["batch"]},
        "budget": {"steps": asked["steps"]},
        "optimizer": {"kind": "adam", "lr": 1e-3, "clip": 1e6 if asked["backend"] == "own" else None},
        "embeddings": {"backend": asked["backend"], "optimizer": {"kind": asked["optimizer"], "lr": 0.05}},
        "checkpoint": {"every": {"steps": 100_000}, "keep": 1},
        "launch": {"processes": asked["processes"], "threads": asked["threads"], "hang_after": None},
        "watch": {"tensorboard": False},
    }
    drivetrain.train(recipe, run=folder / "run", progress=False)


def measured(python: Path, asked: dict) -> tuple[dict[str, list[float]], list[float]]:
    """All times of a run, and the most memory that each of its processes had, in GB."""
    with tempfile.TemporaryDirectory() as folder:
        settings = os.environ | {"RANKING_BENCHMARK": json.dumps(asked | {"folder": folder})}
        settings["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run([str(python), __file__, "--train"], env=settings, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
        peaks = sorted(Path(folder).glob("memory-*.json"))
        return json.loads((Path(folder) / "told.json").read_text()), [int(path.read_text()) / 1e6 for path in peaks]


def show_memory(python: Path, asked: dict) -> None:
    """What each process of 1, 2 and 4 had at most, with tables and with next to none."""
    shapes = asked | {
        "optimizer": "rowwise_adagrad",
        "backend": "own",
        "skew": 1.0,
        "threads": 1,
        "peers": [],
        "steps": 6,
    }
    for processes in (1, 2, 4):
        _, bare = measured(python, shapes | {"rows": 100, "processes": processes})
        _, whole = measured(python, shapes | {"processes": processes})
        held = [f"{a - b:.2f}" for a, b in zip(whole, bare, strict=True)]
        size = 4 * asked["tables"] * asked["rows"] * (asked["dim"] + 1) / 1e9
        print(f"{processes} processes: {', '.join(held)} GB each for {size:.2f} GB of rows and their optimizer's state")


def show(ours: str, told: dict[str, list[float]], alone: list[float], peers: Sequence[str]) -> None:
    """Medians, and the medians of ratios of steps that were made in turn; `alone` are those of ours by itself."""
    own = told["ours"][SKIPPED:]
    medians = f"{_median(told['ours'], len(own))} ms, by itself {_median(alone, len(own))} ms"
    print(f"{ours}: {medians} (dense part alone {_median(told['dense'], len(own))} ms)")
    for name in peers:
        if name not in told:
            print(f"  {name}: not here")
            continue
        theirs = told[name][SKIPPED : SKIPPED + len(own)]
        ratios = [a / b for a, b in zip(own, theirs, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {statistics.median(ratios):.3f} of {name}, {_median(told[name], len(own))} ms "
            f"(half of the pairs from {low:.3f} to {high:.3f})"
        )


def _median(values: Sequence[float], count: int) -> str:
    return f"{1e3 * statistics.median(values[SKIPPED : SKIPPED + count]):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--backends", nargs="+", default=["own", "torchrec"], choices=["own", "torchrec"])
    parser.add_argument("--skew", type=float, nargs="+", default=[1.0, 4.0], help="1: uniform ids; 4: skewed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1, help="that share the tables and the batch")
    parser.add_argument("--memory", action="store_true", help="instead of times, what each process holds")
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this environment, which may lack fbgemm")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        asked = json.loads(os.environ["RANKING_BENCHMARK"])
        trained(asked, Path(asked["folder"]))
        return
    python = Path(sys.executable) if given.here else _environment()
    shapes = REDUCED if given.reduced else WHOLE
    if given.memory:
        show_memory(python, shapes | {"rows": 10 * shapes["rows"]})
        return
    shapes |= {"processes": given.processes, "threads": max(1, given.threads // given.processes)}
    held_against = PAIRS if given.processes == 1 else SHARED
    for skew in given.skew:
        print(f"ids of skew {skew:g}")
        for optimizer, backend in product(given.optimizers, given.backends):
            peers = held_against.get(optimizer)
            if peers and (backend == "own" or optimizer in SHARED):
                asked = shapes | {"skew": skew, "optimizer": optimizer, "backend": backend, "peers": peers}
                alone, _ = measured(python, asked | {"peers": []})
                show(f"{optimizer}, backend {backend}", measured(python, asked)[0], alone["ours"], peers)


def _environment() -> Path:
    """One with fbgemm and TorchRec, which ask for a torch of their own: they are installed as they are."""
    python = environment("ranking", "-r", str(HERE / "requirements.txt"))
    have = subprocess.run([str(python), "-c", "import torchrec"], capture_output=True)
    if have.returncode:
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"], check=False)
    return python


if __name__ == "__main__":
    main()
