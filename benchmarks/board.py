"""The board over a long ledger and over many runs: python benchmarks/board.py [--steps 1000000] [--runs 200]

Says the time to an index, cold and from its snapshot, to a first curve meanwhile, of zooms of twelve curves, from the
command to the first answer, and of the list of many runs; memory and open files of the server.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from drivetrain.board import snapshot
from drivetrain.board.index import Index
from drivetrain.board.zoom import Window
from drivetrain.ledger.ledger import LedgerFile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from records import attempt, commit, evaluation

CHARTS = 12


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--steps", type=int, default=1_000_000)
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--each", type=int, default=10_000, help="steps of each of them")
    given = asked.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="board-"))
    try:
        write(folder / "one" / "long", given.steps)
        print(json.dumps(of_index(folder / "one" / "long"), indent=1))
        print(json.dumps(of_server(folder / "one", folder), indent=1))
        for number in range(given.runs):
            write(folder / "many" / f"run-{number:03d}", given.each, seed=number)
        print(json.dumps(of_server(folder / "many", folder, given.runs), indent=1))
    finally:
        shutil.rmtree(folder)


def write(run: Path, steps: int, seed: int = 0) -> None:
    """A run of so many steps, with a spike every 77,777."""
    run.mkdir(parents=True)
    (run / "resolved.json").write_text('{"recipe": {"name": "long", "optimizer": {"lr": 0.001}}, "origins": {}}')
    draw, ledger, rows = random.Random(seed), LedgerFile.open(run / "ledger.jsonl"), []
    ledger.append(attempt(steps=steps))
    for at in range(1, steps + 1):
        loss = (1.2 + 4 * at**-0.35 + draw.gauss(0, 0.04)) * (4 if at % 77_777 == 0 else 1)
        rows.append(
            {
                "time": 1.79e9 + 0.07 * at,
                "step": at,
                "start": 16 * at - 16,
                "stop": 16 * at,
                "samples": at,
                "losses": {"loss": loss},
                "counts": {"samples": 16, "tokens": 2048},
                "norm": {"model": abs(draw.gauss(0.5, 0.1))},
                "lr": {"model": 0.003 * math.cos(at / steps)},
                "seconds": 0.066 + draw.random() * 0.004,
                "wait": 1.5e-5,
            }
        )
        if len(rows) == 1000 or at == steps:
            ledger.append_steps(1, rows)
            rows = []
            ledger.append(evaluation(at, 2.0))
            ledger.append(commit(at, at=1.79e9))
    ledger.close()


def of_index(run: Path) -> dict[str, float]:
    """Seconds and megabytes in this process, without a server."""
    index, began, first = Index(run / "ledger.jsonl"), time.perf_counter(), 0.0
    while index.follow():
        if not first:
            index.curves(["train/loss"], Window(0))
            first = time.perf_counter() - began
    cold = time.perf_counter() - began
    snapshot.save(index, run.parent / "kept")
    again, began = Index(run / "ledger.jsonl"), time.perf_counter()
    snapshot.load(again, run.parent / "kept")
    again.follow()
    warm = time.perf_counter() - began
    names = (list(index.groups.series) * CHARTS)[:CHARTS]
    steps, draw, zooms = float(index.groups.newest[0]), np.random.default_rng(0), []
    for _ in range(100):
        lo, hi = sorted(draw.uniform(0, steps, 2))
        began = time.perf_counter()
        index.curves(names, Window(0, lo, hi))
        zooms.append(time.perf_counter() - began)
    return {
        "ledger_mb": (run / "ledger.jsonl").stat().st_size / 1e6,
        "snapshot_mb": (run.parent / "kept").stat().st_size / 1e6,
        "first_curve_s": first,
        "cold_s": cold,
        "warm_ms": 1e3 * warm,
        "zoom_median_ms": 1e3 * statistics.median(zooms),
        "zoom_p95_ms": 1e3 * float(np.quantile(zooms, 0.95)),
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def of_server(folder: Path, home: Path, runs: int = 1) -> dict[str, float]:
    """From the command to an answer, twice: with nothing kept, and with what the first one kept."""
    told = {}
    for state in ("cold", "warm"):
        told |= {f"{state}_{name}": value for name, value in _served(folder, home, runs).items()}
    return told


def _served(folder: Path, home: Path, runs: int) -> dict[str, float]:
    environment = os.environ | {"XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache")}
    began = time.perf_counter()
    command = [sys.executable, "-m", "drivetrain", "board", str(folder), "--port", "0"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()  # type: ignore[union-attr]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(address).read()
        base = address.partition("/?")[0]
        opener.open(f"{base}/").read()
        told = {"command_to_page_s": time.perf_counter() - began}
        while True:
            asking = time.perf_counter()
            rows = json.loads(opener.open(f"{base}/api/runs").read())["runs"]
            took = time.perf_counter() - asking
            if len(rows) == runs and all(row["read"] == 1 for row in rows):
                break
            time.sleep(0.05)
        told |= {"all_read_s": time.perf_counter() - began, "list_ms": 1e3 * took}
        asking = time.perf_counter()
        opener.open(f"{base}/api/runs").read()
        told["list_again_ms"] = 1e3 * (time.perf_counter() - asking)
        before = _cpu(server.pid)
        time.sleep(5)
        told["idle_core_percent"] = (_cpu(server.pid) - before) / 5 * 100
        told["open_files"] = len(os.listdir(f"/proc/{server.pid}/fd"))
        told["resident_mb"] = _resident(server.pid)
        return told
    finally:
        server.terminate()
        server.wait()


def _cpu(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1e3


if __name__ == "__main__":
    main()
