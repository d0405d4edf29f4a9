"""How long one waits: help, a recipe's mistakes, and the quickstart's first step. `python benchmarks/startup.py`."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "drivetrain"]


def wall(arguments: list[str], repeats: int) -> str:
    """Median, least and most seconds of a whole command."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([*COMMAND, *arguments], capture_output=True, check=False)
        taken.append(time.perf_counter() - started)
    return f"{statistics.median(taken):.3f} s ({min(taken):.3f} to {max(taken):.3f})"


def first_step(repeats: int) -> str:
    """Seconds from the worker having imported torch to the end of the quickstart's first step."""
    after = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            overrides = ["budget.steps=1", "schedule.warmup=null", "data.validation={}"]
            subprocess.run(
                [*COMMAND, "train", "quickstart", *overrides, "--run", folder], capture_output=True, check=True
            )
            records = [json.loads(line) for line in (Path(folder) / "ledger.jsonl").read_text().splitlines()]
        attempt, step = (next(r for r in records if r["kind"] == kind) for kind in ("attempt", "step"))
        after.append(step["time"] - attempt["started"] - attempt["startup"]["import"])
    return f"{statistics.median(after):.2f} s ({min(after):.2f} to {max(after):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    print(f"drivetrain --help: {wall(['--help'], repeats)}")
    print(f"a recipe with mistakes: {wall(['train', 'quickstart', 'optimizer.lrr=1'], repeats)}")
    print(f"quickstart's first step after torch is imported: {first_step(repeats)}")


if __name__ == "__main__":
    main()
