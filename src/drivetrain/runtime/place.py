"""Which process this is among how many, and where rank 0 listens. Imports no torch: the command line asks too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Node:
    """One machine among `count` that run a job together; `host` and `port` are where its rank 0 listens.

    A machine that is alone listens on its loopback, at any free port.
    """

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    attempt: int = 0


def node_from_environment(environment: Mapping[str, str], nodes: int) -> Node:
    """The node that a launcher gave this process, of so many.

    Its number comes from the first name of `_NODE_RANKS` that is there, the address of the first node from
    `_ADDRESSES`. Raises Failure(64) for what is no number, and for another number of nodes.
    """
    rank = _first_number(environment, _NODE_RANKS, default=0)
    count = _first_number(environment, _NODE_COUNTS, default=nodes)
    attempt = _number(environment, "DRIVETRAIN_ATTEMPT", default=0)
    if count != nodes or rank >= nodes:
        cause = f"the environment says node {rank} of {count}, the job has {nodes}"
        raise Failure(Exit.BAD_COMMAND, cause, f"nodes count from 0: mend {_NODE_RANKS[0]} and {_NODE_COUNTS[0]}")
    if nodes == 1:
        return Node(attempt=attempt)
    host = ""
    for name in _ADDRESSES:
        host = host or environment.get(name, "")
    if not host:
        cause = f"nothing tells where node 0 of {nodes} is"
        raise Failure(Exit.BAD_COMMAND, cause, f"set {_ADDRESSES[0]} to its address")
    return Node(rank, nodes, host, _number(environment, "DRIVETRAIN_PORT", default=29400), attempt)


_NODE_RANKS = ("DRIVETRAIN_NODE", "SLURM_NODEID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_NODE_INDEX")
_NODE_COUNTS = ("DRIVETRAIN_NODES", "SLURM_STEP_NUM_NODES", "AWS_BATCH_JOB_NUM_NODES")
_ADDRESSES = ("DRIVETRAIN_ADDRESS", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "MASTER_ADDR")


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
    # The step's own numbers first: srun may start fewer tasks than the job was given.
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    # Such as `4` or `4(x2),3`: the tasks of each node, the first one's first.
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


def _first_number(environment: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """The number under the first of these names that is there."""
    for name in names:
        if name in environment:
            return _number(environment, name)
    return default


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
