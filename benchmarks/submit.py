"""What submitting costs: a dry run, a status, and the way to the first step on a real Slurm of two nodes, started here,
beside plain sbatch with srun and torchrun. `python benchmarks/submit.py` (as root, with slurm-wlm)."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import slurm_lab

COMMAND = [sys.executable, "-m", "drivetrain"]
FLOORS = {
    "python -c pass": "pass",
    "import typer, pydantic": "import typer; from pydantic import TypeAdapter; TypeAdapter(int)",
}
"""What every command costs here before it does anything."""
TORCHRUN = """#!/bin/bash
cd {run}  # torchrun takes --run for one of its own options
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1
srun {python} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \\
  --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=$SLURM_JOB_ID -m drivetrain train {recipe}
"""
RECIPE = {
    "base": "quickstart",
    "budget": {"steps": 2},
    "schedule": {"warmup": None},
    "batch": {"size": 8, "micro": 2},
    "data": {"validation": {}},
}


def wall(command: list[str], repeats: int) -> str:
    """Median, least and most seconds of a whole command, and the processor's seconds: they tell more where others work
    on the machine."""
    taken, before = [], os.times()
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        taken.append(time.perf_counter() - started)
    after = os.times()
    processor = sum(after[2:4]) - sum(before[2:4])
    return f"{told(taken)}, of which the processor {processor / repeats:.2f} s"


def told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def first_step(run: Path, started: float) -> float:
    """Seconds from a start to the first step in the ledger of the one run below a folder, once that run has ended."""
    found = None
    while time.time() < started + 300:
        ledger = next(run.rglob("ledger.jsonl"), None)
        lines = ledger.read_text().splitlines() if ledger else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        found = next((record.time for record in records if record.kind == "step"), found)
        if any(record.kind == "exit" for record in records):
            assert found is not None
            return found - started
        time.sleep(0.05)
    raise TimeoutError(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with slurm_lab.lab(folder / "lab") as slurm:
            os.environ |= slurm.environment | {"DRIVETRAIN_JOBS": f"{name}/jobs"}
            (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
            targets = {"cluster": {"kind": "slurm", "nodes": 2, "processes": 2, "runs": name}}
            (folder / "targets.yaml").write_text(yaml.safe_dump(targets))
            os.environ["DRIVETRAIN_TARGETS"] = f"{name}/targets.yaml"
            submit = ["submit", f"{name}/recipe.yaml", "--to", "cluster"]
            for floor, code in FLOORS.items():
                print(f"{floor}: {wall([sys.executable, '-c', code], repeats)}")
            print(f"submit --dry-run: {wall([*COMMAND, *submit, '--dry-run'], repeats)}")
            ours, theirs, answers = [], [], []
            for number in range(repeats):
                run = folder / f"ours-{number}"
                started = time.time()
                subprocess.run([*COMMAND, *submit, "--run", run], check=True, capture_output=True)
                if number == 0:
                    began = time.perf_counter()
                    slurm("squeue", "-h", "-t", "all", "-j", "1", "-o", "%T|%r|%S")
                    answers.append(time.perf_counter() - began)
                    print(f"status: {wall([*COMMAND, 'status', 'quickstart'], repeats)}; squeue alone {told(answers)}")
                ours.append(first_step(run, started))
                slurm.wait_idle()
                run = folder / f"theirs-{number}"
                run.mkdir()
                text = TORCHRUN.format(
                    python=sys.executable, recipe=folder / "recipe.yaml", run=run, port=25000 + number
                )
                (folder / "plain.sh").write_text(text)
                started = time.time()
                slurm("sbatch", "-N2", "--ntasks-per-node=1", f"--output={name}/plain.log", str(folder / "plain.sh"))
                theirs.append(first_step(run, started))
                slurm.wait_idle()
            print(f"submit to the first step, 2 nodes x 2 processes: {told(ours)}; sbatch + torchrun {told(theirs)}")


if __name__ == "__main__":
    main()
