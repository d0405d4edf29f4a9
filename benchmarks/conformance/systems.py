"""The systems: how each is started by its own launcher, and what its checkpoints are called."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).parent / "adapters"


@dataclass(frozen=True)
class System:
    """`command(folder of programs, run directory, processes)`; `checkpoints` is a pattern in the run directory."""

    name: str
    packages: tuple[str, ...]
    launcher: str
    checkpoints: str
    command: Callable[[Path, Path, int], list[str]]

    def newest(self, run: Path) -> Path:
        """The checkpoint with the highest number in its name."""
        found = [path for path in run.glob(self.checkpoints) if not path.name.startswith(".")]
        return max(found, key=lambda path: int(re.findall(r"\d+", path.name)[-1]))


def _drivetrain(programs: Path, run: Path, processes: int) -> list[str]:
    recipe = str(ADAPTERS / "drivetrain.yaml")
    return [str(programs / "drivetrain"), "train", recipe, "--run", str(run), "--processes", str(processes)]


def _fabric(programs: Path, _: Path, processes: int) -> list[str]:
    where = ["--accelerator=cpu", "--strategy=ddp", f"--devices={processes}", f"--main-port={_free_port()}"]
    return [str(programs / "fabric"), "run", *where, str(ADAPTERS / "train_fabric.py")]


def _torchrun(script: str) -> Callable[[Path, Path, int], list[str]]:
    """One process is started as a script; several by torchrun, which restarts nothing unless it is told to."""

    def command(programs: Path, _: Path, processes: int) -> list[str]:
        if processes == 1:
            return [str(programs / "python"), str(ADAPTERS / script)]
        options = ["--standalone", f"--nproc-per-node={processes}"]
        return [str(programs / "torchrun"), *options, str(ADAPTERS / script)]

    return command


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


TORCHRUN = "torchrun --standalone"
SYSTEMS = (
    System("drivetrain", ("drivetrain",), "drivetrain train", "checkpoints/step-*", _drivetrain),
    System("fabric", ("lightning",), "fabric run", "step-*.ckpt", _fabric),
    System("accelerate", ("accelerate",), TORCHRUN, "checkpoints/checkpoint_*", _torchrun("train_accelerate.py")),
    System("hf-trainer", ("transformers", "accelerate"), TORCHRUN, "checkpoint-*", _torchrun("train_hf.py")),
    System("torch-dcp", ("torch",), TORCHRUN, "step-*", _torchrun("train_dcp.py")),
)
