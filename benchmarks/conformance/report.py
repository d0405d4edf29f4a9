"""The table of docs/conformance.md, from what was seen."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from faults import FAULTS, Fault
from systems import SYSTEMS, System

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"
SEEN = "seen: "
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


@dataclass(frozen=True)
class Facts:
    """When and with what a system was tried."""

    date: str
    machine: str
    versions: dict[str, str]

    @classmethod
    def of(cls, python: Path) -> Facts:
        names = sorted({"torch", *(name for system in SYSTEMS for name in system.packages)})
        code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
        told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        machine = (
            f"{os.cpu_count()} CPU cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}, no accelerator"
        )
        return cls(time.strftime("%Y-%m-%d"), machine, json.loads(told))

    def keep(self, system: System) -> None:
        (RESULTS / f"{system.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def log_of(fault: Fault, system: System) -> Path:
    """Where the raw log of a cell lies; its second line says what was seen."""
    return RESULTS / f"{fault.name}-{system.name}.txt"


def publish() -> None:
    """Write the table anew, from the raw logs."""
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + table() + END + rest.split(END)[1])


def table() -> str:
    """Rows are faults, columns systems."""
    systems = [system for system in SYSTEMS if (RESULTS / f"{system.name}.json").is_file()]
    lines = [_row("fault", *(system.name for system in systems)), _row(*["---"] * (len(systems) + 1))]
    for fault in FAULTS:
        cells = [_seen(log_of(fault, system)) for system in systems]
        lines.append(_row(f"{fault.title} (`{fault.name}`)", *cells))
    lines += ["", _row("system", "versions", "started on 2 processes by", "date", "machine"), _row(*["---"] * 5)]
    for system in systems:
        metadata = Facts(**json.loads((RESULTS / f"{system.name}.json").read_text()))
        names = dict.fromkeys((*system.packages, "torch"))
        versions = ", ".join(f"{name} {metadata.versions[name]}" for name in names)
        lines.append(_row(system.name, versions, f"`{system.launcher}`", metadata.date, metadata.machine))
    return "\n".join(lines) + "\n"


def _seen(log: Path) -> str:
    return log.read_text().splitlines()[1].removeprefix(SEEN) if log.is_file() else "not tried"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
