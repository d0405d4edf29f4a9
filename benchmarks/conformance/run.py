"""The same faults for Drivetrain and four others, each used as its documentation advises.

One command: `python benchmarks/conformance/run.py [--only FAULT ...] [--systems NAME ...]`. It makes the environment of
`benchmarks/loop/run.py`, strikes, and writes one raw log for each cell and the table of docs/conformance.md.
"""

import argparse
import os
import runpy
import shutil
import tempfile
import time
from pathlib import Path

from faults import FAULTS, Bench, Fault
from report import RESULTS, SEEN, Facts, log_of, publish
from systems import SYSTEMS, System

ROOT = Path(__file__).parents[2]


def strike(bench: Bench, fault: Fault, hidden: dict[str, str]) -> None:
    """Write down what was seen of a fault, without this machine's paths."""
    bench.log.clear()
    began = time.monotonic()
    seen = fault.tried(bench)
    print(f"{bench.system.name:12} {fault.name:20} {time.monotonic() - began:4.0f} s  {seen}", flush=True)
    text = "\n".join([f"{bench.system.name}: {fault.title}", SEEN + seen, *bench.log, ""])
    for path, name in hidden.items():
        text = text.replace(path, name)
    log_of(fault, bench.system).write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[fault.name for fault in FAULTS], help="faults; default: all")
    parser.add_argument("--systems", nargs="+", choices=[system.name for system in SYSTEMS], help="default: all")
    asked = parser.parse_args()
    faults = [fault for fault in FAULTS if not asked.only or fault.name in asked.only]
    systems: list[System] = [system for system in SYSTEMS if not asked.systems or system.name in asked.systems]
    python = runpy.run_path(str(ROOT / "benchmarks" / "loop" / "run.py"))["frameworks"]()
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    hidden = {str(folder): "TRIALS", str(python.parent): "ENV", str(ROOT): "REPOSITORY"}
    metadata = Facts.of(python)
    try:
        for system in systems:
            bench = Bench(system, python.parent, folder / system.name)
            metadata.keep(system)
            for fault in faults:
                strike(bench, fault, hidden)
                publish()
            shutil.rmtree(bench.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
