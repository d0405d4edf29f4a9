"""`python -m golden record|compare [NAME ...]`: make golden runs, and keep them or compare them with what is kept."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from golden.record import Json, keep, recorded, verdict
from golden.runs import RUNS, make


def main() -> int:
    """1 where a run that is compared is another one."""
    parser = argparse.ArgumentParser(prog="python -m golden", description=__doc__)
    parser.add_argument("act", choices=["record", "compare"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="runs that are made at the same time")
    asked = parser.parse_intermixed_args()  # options and names in any order
    names = asked.names or list(RUNS)
    unequal = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for name, document in zip(names, pool.map(made, names), strict=True):
            if asked.act == "record":
                keep(name, document)
                print(f"{name}: recorded")
            else:
                found = verdict(name, document)
                unequal += bool(found.differences)
                print(f"{name}: {found}", flush=True)
    return 1 if unequal else 0


def made(name: str) -> Json:
    """The document of a run that is made now, in a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix=f"golden-{name}-") as folder:
        codes = make(RUNS[name], Path(folder))
        return recorded(Path(folder), RUNS[name].runs, codes)


if __name__ == "__main__":
    sys.exit(main())
