"""Runs checks, each in a process of its own, so that a crash or a hang is one failed line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerator.check import Check, Found, Here

ROOT = Path(__file__).parents[2]
NEEDED = {"torch": "torch", "numpy": "numpy", "pydantic": "pydantic", "yaml": "PyYAML", "rich": "rich"}
"""What has to be importable, by the name of its wheel; each brings what it needs itself."""
USAGE, MISSING = 64, 66
PROBE_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 where anything failed, 64 for a check that is not there, 66 for a wheel that is not."""
    asked = _parser().parse_args(arguments)
    if asked.child:
        from accelerator.child import work  # it imports torch

        return work(asked.child, json.loads(asked.here), asked.result, asked.checks)
    if missing := [wheel for module, wheel in NEEDED.items() if find_spec(module) is None]:
        told = f"pip install {' '.join(missing)} (without a network: carry their wheels, pip install --no-index)"
        print(f"{sys.executable} lacks {', '.join(missing)}: {told}", file=sys.stderr)
        return MISSING
    checks: Sequence[Check] = import_module(asked.checks).CHECKS
    if asked.list:
        for check in checks:
            print(f"{check.name:<34} {check.says}")
        return 0
    wanted = asked.only or [check.name for check in checks]
    known = {name for check in checks for name in _names(check)}
    if strange := [name for name in wanted if name not in known]:
        print(f"there is no check {strange[0]!r}; --list says which there are", file=sys.stderr)
        return USAGE
    chosen = [check for check in checks if not _names(check).isdisjoint(wanted)]
    # Whoever ends this ends what it has started: each child is a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return _run(chosen, asked)


def _run(chosen: Sequence[Check], asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="accelerator-", dir=asked.disk) as name:
        probed = _child("probe", {"device": asked.device}, Path(name), PROBE_SECONDS, asked.checks)
        if isinstance(probed, str) or probed["verdict"] != "passed":
            why = probed if isinstance(probed, str) else probed["why"]
            print(f"no device could be looked at: {why}", file=sys.stderr)
            return 1
        here = Here(**probed["figures"], folder=Path(name))
        form = "reduced: no device" if here.reduced else f"{here.count} of {here.name}"
        print(f"torch {here.torch}, {form}", flush=True)
        rows = []
        for check in chosen:
            rows.append(_found(check, here, asked.checks))
            print(rows[-1].line(), flush=True)
    verdicts = [row.verdict for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in ("passed", "failed", "not applicable")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if asked.json:
        where = {name: value for name, value in asdict(here).items() if name != "folder"}
        asked.json.write_text(json.dumps({"here": where, "checks": [row.to_json() for row in rows]}, indent=2))
    return 1 if counts["failed"] else 0


def _names(check: Check) -> set[str]:
    """What may be written for it: its name, or its first word."""
    return {check.name, check.name.split()[0]}


def _found(check: Check, here: Here, checks: str) -> Found:
    """What comes of one check."""
    if check.devices > here.count:
        what = "processes that stand for devices" if here.reduced else "devices"
        return Found(check.name, "not applicable", 0.0, f"needs {check.devices} {what}, there are {here.count}")
    folder = here.folder / check.name.replace(" ", "-")
    folder.mkdir()
    began = time.monotonic()
    given = asdict(here) | {"folder": str(folder)}
    told = _child(check.name, given, folder, check.limit(here), checks)
    seconds = round(time.monotonic() - began, 1)
    if isinstance(told, str):
        return Found(check.name, "failed", seconds, told)
    return Found(check.name, told["verdict"], seconds, told["why"], told["figures"])


def _child(name: str, here: dict[str, Any], folder: Path, seconds: int, checks: str) -> dict[str, Any] | str:
    """What a process of its own has found, or how it ended."""
    result, log = folder / f"{name.replace(' ', '-')}.json", folder / "log.txt"
    command = [sys.executable, "-m", "accelerator", "--child", name]
    command += ["--here", json.dumps(here), "--result", str(result), "--checks", checks]
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with log.open("w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, env=settings, start_new_session=True)
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done after {seconds} s{_last(log)}"
        finally:
            _end(child)
    if not result.exists():
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"its process ended with {how}{_last(log)}"
    return json.loads(result.read_text())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child, and what it has started and left behind: all of its session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _last(log: Path) -> str:
    """The last line that a child has written, to be added to a sentence."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m accelerator", description="All that needs a device.")
    parser.add_argument("--list", action="store_true", help="the checks, and what each says")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these checks, or all whose first word it is")
    parser.add_argument("--device", default="auto", help="as in a recipe; cpu: the reduced form")
    parser.add_argument("--json", type=Path, help="also write all of it to this file")
    parser.add_argument("--disk", help="a folder on the disk for runs")
    parser.add_argument("--checks", default="accelerator.checks", help="the module whose CHECKS are run")
    for hidden in ("--child", "--here", "--result"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser
