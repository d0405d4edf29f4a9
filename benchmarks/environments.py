"""Environments that benchmarks make for themselves, with the libraries that they measure beside ours."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / ".envs"


def environment(name: str, *wanted: str, alone: bool = False) -> Path:
    """The Python of an environment with torch, drivetrain and what is wanted, as pip takes it, or with that alone; made
    the first time, and again where something else is wanted."""
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    asked = "\n".join([Path(word).read_text() if word.endswith(".txt") else word for word in wanted])
    if not ready.exists() or ready.read_text() != asked:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        if alone:
            subprocess.run([*pip, *wanted], check=True)
        else:
            _with_ours([*pip, "-c", _constraint(folder)], wanted)
        ready.write_text(asked)
    return python


def _constraint(folder: Path) -> str:
    file = folder / "constraint.txt"
    file.write_text("torch==2.13.0\n")
    return str(file)


def _with_ours(pip: Sequence[str], wanted: Sequence[str]) -> None:
    subprocess.run([*pip, "torch"], check=True)  # first and alone: pip takes a CPU build where it knows one
    subprocess.run([*pip, *wanted, "-e", str(ROOT)], check=True)
