"""The index of one ledger without a server, in a process of its own: python benchmarks/board/alone.py RUN"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from drivetrain.board import snapshot
from drivetrain.board.index import Index
from drivetrain.board.zoom import Window

CHARTS = 12


def main(run: Path) -> None:
    kept = Path(tempfile.mkdtemp(prefix="bench-board-"))
    try:
        index, told = cold(run)
        snapshot.save(index, kept / "index")
        told |= warm(run, kept / "index") | zooms(index)
        told["bytes_a_record"] = (run / "ledger.jsonl").stat().st_size / index.records
    finally:
        shutil.rmtree(kept)
    # Linux tells kilobytes.
    told["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps(told))


def cold(run: Path) -> tuple[Index, dict[str, float]]:
    """Seconds to a first curve, and to the whole index."""
    index, began, first = Index(run / "ledger.jsonl"), time.perf_counter(), 0.0
    while index.follow():
        if not first:
            index.curves(["train/loss"], Window(0))
            first = time.perf_counter() - began
    return index, {"first_curve_s": first, "cold_s": time.perf_counter() - began}


def warm(run: Path, kept: Path) -> dict[str, float]:
    """Milliseconds to the whole index from its snapshot."""
    index, began = Index(run / "ledger.jsonl"), time.perf_counter()
    snapshot.load(index, kept)
    index.follow()
    return {"warm_ms": 1e3 * (time.perf_counter() - began), "snapshot_mb": kept.stat().st_size / 1e6}


def zooms(index: Index) -> dict[str, float]:
    """Milliseconds of twelve curves between two places."""
    names = (list(index.groups.series) * CHARTS)[:CHARTS]
    steps, draw, taken = float(index.groups.newest[0]), np.random.default_rng(0), []
    for _ in range(100):
        lo, hi = sorted(draw.uniform(0, steps, 2))
        began = time.perf_counter()
        index.curves(names, Window(0, lo, hi))
        taken.append(1e3 * (time.perf_counter() - began))
    return {"zoom_median_ms": statistics.median(taken), "zoom_p95_ms": float(np.quantile(taken, 0.95))}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
