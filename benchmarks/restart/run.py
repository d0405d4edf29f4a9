"""What a killed process costs: restarts and goodput, beside torchrun's own restart. `python benchmarks/restart/run.py`.

Two processes make steps of 0.1 s and save every ten. Every `mtbf` seconds a random one is killed. Goodput is the time
of the steps that count, over all the time since the first step. Both are driven by the same code, one after the other.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parent
STEP, EVERY, PROCESSES = 0.1, 10, 2
PATIENCE = 60.0
"""Seconds without a step after which a system has not come back."""


@dataclass
class System:
    """How one of the two is started, and where its steps are told."""

    name: str
    command: list[str]
    folder: Path

    def start(self) -> subprocess.Popen:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (self.folder / "out").open("ab") as out:
            return subprocess.Popen(self.command, stdout=out, stderr=out, env=environment, start_new_session=True)

    def steps(self) -> list[tuple[float, int]]:
        """(time, step) of every step so far, those that were made again too."""
        try:
            if self.name == "drivetrain":
                lines = (self.folder / "run" / "ledger.jsonl").read_text().splitlines()
                records = [json.loads(line) for line in lines if '"kind":"step"' in line and line.endswith("}")]
                return [(record["time"], record["step"]) for record in records]
            pairs = (line.split() for line in (self.folder / "steps").read_text().splitlines())
            return [(float(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2]
        except (OSError, ValueError):
            return []


def systems(folder: Path) -> list[System]:
    ours, theirs = folder / "drivetrain", folder / "torchrun"
    for path in (ours, theirs):
        path.mkdir()
    recipe = {
        "name": "restarts",
        "task": {"kind": "ours:Sleepy", "seconds": STEP},
        "data": {"train": {"sources": [{"kind": "ours:Numbers"}]}},
        "batch": {"size": 8},
        "budget": {"steps": 10**6},
        "checkpoint": {"every": {"steps": EVERY}},
        "launch": {"processes": PROCESSES, "threads": 1, "restarts": 1000},
    }
    (HERE / ".recipe.json").write_text(json.dumps(recipe))
    train = ["-m", "drivetrain", "train", str(HERE / ".recipe.json"), "--run", str(ours / "run")]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", "--max-restarts=1000"]
    script = [str(HERE / "theirs.py"), str(theirs), str(STEP), str(EVERY)]
    return [
        System("drivetrain", [sys.executable, *train], ours),
        System("torchrun", [sys.executable, *torchrun, *script], theirs),
    ]


def workers(process: subprocess.Popen) -> list[int]:
    """The processes that train: those that have no further child and are not the last of the launcher's helpers."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            line = " ".join(child.cmdline())
            if not child.children() and ("theirs.py" in line or "forkserver" in line):
                found.append(child.pid)
        except psutil.Error:
            pass
    return sorted(found)[-PROCESSES:]


def end(process: subprocess.Popen) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            child.kill()
        except psutil.Error:
            pass
    process.kill()
    process.wait()


def first_step_after(system: System, moment: float, patience: float = PATIENCE) -> float:
    """Seconds from a moment to the end of the next step."""
    deadline = time.time() + patience
    while time.time() < deadline:
        after = [at for at, _ in system.steps()[-50:] if at > moment]
        if after:
            return after[0] - moment
        time.sleep(0.02)
    raise TimeoutError(f"{system.name} made no step within {patience} s: see {system.folder}/out")


def goodput(system: System, mtbf: float, seconds: float, generator: random.Random) -> tuple[float, list[float]]:
    """The share of the time in steps that count, and seconds from each kill to the end of the next step."""
    process = system.start()
    try:
        began = time.time()
        first_step_after(system, began)
        began = time.time()
        base = system.steps()[-1][1]
        recovery = []
        while time.time() - began < seconds:
            time.sleep(mtbf * generator.uniform(0.9, 1.1))
            killed = time.time()
            os.kill(generator.choice(workers(process)), signal.SIGKILL)
            time.sleep(0.1)
            try:
                recovery.append(first_step_after(system, killed + 0.1) + 0.1)
            except TimeoutError:  # the rest of the time would be more of the same
                recovery.append(math.inf)
                break
        took = time.time() - began
        return (system.steps()[-1][1] - base) * STEP / took, recovery
    finally:
        end(process)


def cold(system: System) -> float:
    """Seconds from the command to the end of the first new step, after everything was killed."""
    process = system.start()
    try:
        return first_step_after(system, time.time())
    finally:
        end(process)


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"median {statistics.median(values):.2f} s, p95 {high:.2f} s, {len(values)} times"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtbf", type=float, nargs="+", default=[15, 60])
    parser.add_argument("--seconds", type=float, default=180, help="of each run under kills")
    parser.add_argument("--cold", type=int, default=5)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        for system in systems(folder):
            for mtbf in asked.mtbf:
                share, recovery = goodput(system, mtbf, asked.seconds, random.Random(0))
                print(
                    f"{system.name}: a kill every {mtbf:g} s: goodput {share:.1%}; warm restart {spread(recovery)}",
                    flush=True,
                )
            print(f"{system.name}: cold start {spread([cold(system) for _ in range(asked.cold)])}", flush=True)
    finally:
        shutil.rmtree(folder)
        (HERE / ".recipe.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
