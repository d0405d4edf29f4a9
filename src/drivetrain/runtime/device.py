"""The device, its settings, and the facts about this environment that decide which bits can be compared."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch

from drivetrain.runtime.cores import cores
from drivetrain.runtime.memory import keep_freed
from drivetrain.spec.exits import Exit, Failure

PACKAGE = "package."
"""How the keys of an environment begin that have versions of packages."""
_IN_HOST_MEMORY = frozenset({"cpu", "mps"})
"""Types of devices that compute in the host's memory; all others have their own."""


def choose(name: str, local_rank: int) -> torch.device:
    """The device of this process. Raises Failure(78) where the recipe asks for one that this machine lacks."""
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    if name == "auto":
        name = accelerator.type if accelerator else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if accelerator is None or accelerator.type != name or local_rank >= torch.accelerator.device_count():
        there = "no accelerator"
        if accelerator:
            there = f"{torch.accelerator.device_count()} of {accelerator.type}"
        raise Failure(
            Exit.BAD_RECIPE, f"device: {name} for local rank {local_rank}, but there is {there}", "use device: auto"
        )
    return torch.device(name, local_rank)


def name(device: torch.device) -> str:
    """What its maker calls it, or its type."""
    return _maker_name(device) or device.type


def has_own_memory(device: torch.device) -> bool:
    """Whether what it computes has to be copied to the host, for which memory is pinned, and an allocator of torch's
    counts what it holds."""
    return device.type not in _IN_HOST_MEMORY


def own_generator(device: torch.device) -> torch.Generator | None:
    """The device's default generator of random numbers; None for the CPU, and where Python cannot reach it."""
    generators = getattr(torch.get_device_module(device), "default_generators", None)
    return None if generators is None else generators[device.index or 0]


def threads_per_process(local_world: int, asked: int | None, *, exact: bool) -> int:
    """CPU threads of each process: as asked, or the cores shared out evenly; in exact mode one, on any machine and in
    any world, since kernels cut their sums by the number of threads."""
    if asked:
        return asked
    if exact:
        return 1
    return max(1, cores() // local_world)


def configure_determinism(device: torch.device, threads: int, matmul: str, *, exact: bool) -> None:
    """Fix what numbers depend on: threads, matrix precision, deterministic kernels; and keep freed memory.

    An operation that has no deterministic kernel warns; in exact mode it raises RuntimeError.
    """
    keep_freed()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    # Filling new tensors costs a pass over each and decides no bit.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type != "cpu":
        # cuBLAS needs this to be deterministic, and reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.accelerator.set_device_index(device.index or 0)
    # `use_deterministic_algorithms` says the same, and imports the compiler.
    torch.set_deterministic_debug_mode("error" if exact else "warn")


def environment(imported: Collection[str] = ()) -> dict[str, Any]:
    """Versions, host, threads and instruction set, as `environment.json` keeps them.

    `imported` are the installed packages that the user's own code imports, by their top-level names: `package.NAME` has
    the version of each.
    """
    packages = {f"{PACKAGE}{name}": _version_of_module(name) for name in sorted(set(imported) - {"torch"})}
    return packages | {
        "drivetrain": _version("drivetrain"),
        "code": _code_digest(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "accelerator": _current_maker_name(),
        "git": git_commit(),
    }


def claim_key(device: torch.device, **shape: Any) -> str:
    """A digest of all that must be equal for two stretches of training to be comparable bit by bit.

    `shape` is the number of processes (`world`), or in exact mode that of lanes, and what else it is a matter of.
    """
    metadata = shape | {
        "device": device.type,
        "accelerator": _maker_name(device),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()[:12]


def _maker_name(device: torch.device) -> str | None:
    """What its maker calls it; None where torch does not say, as of the CPU and of MPS."""
    tell = getattr(torch.get_device_module(device), "get_device_name", None)
    return None if tell is None else tell(device)


def _current_maker_name() -> str | None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if accelerator is None else _maker_name(accelerator)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _version_of_module(name: str) -> str | None:
    """The version of the package that a top-level module belongs to; None where nobody knows."""
    if own := _version(name):  # most packages have their module's name
        return own
    # As `packages_distributions` does, which parses what is only searched here, and takes a tenth of a second.
    entry = f"{name}/__init__.py,".encode()
    for folder in filter(None, sys.path):
        for record in Path(folder).glob("*.dist-info/RECORD"):
            content = record.read_bytes()
            if content.startswith(entry) or b"\n" + entry in content:
                return _version(record.parent.name.partition("-")[0])
    return None


@cache
def _code_digest() -> str:
    """A digest of this package's sources."""
    package = Path(__file__).parent.parent
    content = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:12]


def git_commit(folder: str | None = None) -> str | None:
    """The commit of a folder, by default the working one, with `+` where files differ from it; None outside a
    repository."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, cwd=folder)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
