"""What a framework's loop costs per step over the bare PyTorch loop. One command: `python benchmarks/loop/run.py`.

It makes its own environment for the other frameworks. Each framework runs in a process of its own, in blocks that take
turns with the bare loop; the overhead of a block is its mean step minus that of the bare block beside it. Told are the
median over blocks, the spread, and the same from medians of steps, which leave out what seldom happens.
`--against without-telemetry drivetrain` has ours take turns with ours instead, to see what telemetry costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from environments import environment  # noqa: E402

NAMES = ["drivetrain", "fabric", "accelerate", "ignite", "lightning", "hf-trainer"]


def frameworks() -> Path:
    """The Python that has all frameworks."""
    return environment("loop", "-r", str(HERE / "requirements.txt"))


def measure(python: Path, name: str, steps: int, blocks: int, against: str) -> list[dict[str, float]]:
    """The pairs of one framework."""
    command = [str(python), str(HERE / "pair.py"), name, str(steps), str(blocks), against]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--against", default="bare", help="what a framework takes turns with")
    parser.add_argument("names", nargs="*", default=NAMES)
    asked = parser.parse_args()
    python = frameworks()
    other = asked.against
    print(f"| framework | {other} us | overhead us, means: median (min to max) | overhead us, medians | ratio |")
    print("|---|---|---|---|---|")
    results = {}
    for name in asked.names:
        pairs = results[name] = measure(python, name, asked.steps, asked.blocks, other)
        extra = [1e6 * (pair["own"] - pair["bare"]) for pair in pairs]
        typical = statistics.median(1e6 * (pair["own_median"] - pair["bare_median"]) for pair in pairs)
        plain = 1e6 * statistics.median(pair["bare"] for pair in pairs)
        ratio = statistics.median(pair["own"] / pair["bare"] for pair in pairs)
        spread = f"{statistics.median(extra):.0f} ({min(extra):.0f} to {max(extra):.0f})"
        print(f"| {name} | {plain:.0f} | {spread} | {typical:.0f} | {ratio:.3f} |", flush=True)
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    name = "loop" if other == "bare" else f"loop-{other}"
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
