"""Which process this is among how many, and where rank 0 listens. Imports no torch: the command line asks too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Place:
    """One process among `world`; `host` and `port` are rank 0's rendezvous (unused where it is alone)."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    launcher: str = "inline"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Place(**data)` is the place again."""
        return asdict(self)


def from_environment(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun or srun gave this process; None where neither started it.

    Raises Failure(64) for variables that are no numbers or contradict each other.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _torchrun(environment)
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        return _srun(environment)
    return None


def _torchrun(environment: Mapping[str, str]) -> Place:
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local_world = _number(environment, "LOCAL_WORLD_SIZE", default=1)
    return _checked(
        Place(
            rank=rank,
            world=world,
            local_rank=_number(environment, "LOCAL_RANK", default=rank % max(1, local_world)),
            local_world=local_world,
            host=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environment, "MASTER_PORT", default=29500),
            launcher="torchrun",
        )
    )


def _srun(environment: Mapping[str, str]) -> Place:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "127.0.0.1")
    return _checked(
        Place(
            rank=_number(environment, "SLURM_PROCID"),
            world=_number(environment, tasks),
            local_rank=_number(environment, "SLURM_LOCALID", default=0),
            local_world=int(per_node.group()) if per_node else 1,
            host=environment.get("MASTER_ADDR") or first_host(nodes),
            port=_number(environment, "MASTER_PORT", default=20000 + _number(environment, "SLURM_JOB_ID", 0) % 20000),
            launcher="srun",
        )
    )


def first_host(nodes: str) -> str:
    """The first name of a Slurm node list: `gpu[003-007,9],x` is gpu003."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if not match:
        raise Failure(Exit.BAD_COMMAND, f"SLURM_STEP_NODELIST={nodes!r} names no host", "start the step by srun")
    return "".join(part or "" for part in match.groups())


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit():
        raise Failure(
            Exit.BAD_COMMAND, f"{name}={text!r} in the environment is no whole number", f"unset or mend {name}"
        )
    return int(text)


def _checked(place: Place) -> Place:
    if not (0 <= place.rank < place.world and 0 <= place.local_rank < place.local_world <= place.world):
        raise Failure(
            Exit.BAD_COMMAND,
            f"the environment says rank {place.rank} of {place.world}, "
            f"and on this machine {place.local_rank} of {place.local_world}",
            "ranks count from 0 and are below the number of processes: mend or unset RANK, WORLD_SIZE, LOCAL_RANK ...",
        )
    return place
