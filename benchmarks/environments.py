"""Environments that benchmarks make for themselves, with the libraries that they measure beside ours."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / ".envs"


def environment(name: str, *wanted: str) -> Path:
    """The Python of an environment with torch, drivetrain and what is wanted, as pip takes it; made the first time, and
    again where something else is wanted."""
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    asked = "\n".join([Path(word).read_text() if word.endswith(".txt") else word for word in wanted])
    if not ready.exists() or ready.read_text() != asked:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        constraint = folder / "constraint.txt"
        constraint.write_text("torch==2.13.0\n")
        pip = [str(python), "-m", "pip", "install", "-q", "-c", str(constraint)]
        subprocess.run([*pip, "torch"], check=True)  # first and alone: pip takes a CPU build where it knows one
        subprocess.run([*pip, *wanted, "-e", str(ROOT)], check=True)
        ready.write_text(asked)
    return python
