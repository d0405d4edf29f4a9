"""The processes of a run: how they find each other, and the few things they say besides gradients."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from drivetrain.runtime.doubling import Combine, exchanges, start
from drivetrain.runtime.place import Place
from drivetrain.spec.exits import Exit, Failure

# torch 2.13 renamed it and warns of the old name; 2.11 has only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
PULSE, ADDED = 1, 2
"""Tags of what passes between two ranks of the side: the pulse's rows, which are under way while others pass."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Group:
    """All processes of a run. A process that is alone has no torch.distributed underneath.

    `main` carries gradients (gloo on the CPU, NCCL on CUDA), `side` everything else (always gloo).
    Messages are JSON in byte tensors, never pickles. Every method that talks raises Failure(69) where a peer is lost.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self.main: Any = None  # torch.distributed process groups; None where the process is alone
        self.side: Any = None
        self.backend = "gloo"
        """What carries gradients."""
        self.side_backend = "gloo"
        """What carries everything else."""

    @property
    def leader(self) -> bool:
        """Whether this process keeps the ledger and coordinates commits."""
        return self.rank == 0

    @classmethod
    def join(cls, place: Place, device: torch.device, *, listen_fd: int | None = None, timeout: float = 600.0) -> Group:
        """Meet the other processes.

        On one machine nothing listens beyond the loopback: rank 0 is given a socket that is bound there (`listen_fd`).
        Raises Failure(69) where they do not come within `timeout` seconds.
        """
        group = cls(place.rank, place.world)
        if place.world == 1:
            return group
        if place.host in _LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        wait = timedelta(seconds=timeout)
        try:
            store = TCPStore(
                place.host,
                place.port,
                place.world,
                is_master=place.rank == 0 and not _hosted_by_agent(),
                timeout=wait,
                master_listen_fd=listen_fd,
                wait_for_workers=False,
            )
            # The default group is gloo on every device: what is no gradient never waits for the accelerator.
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world, timeout=wait)
            group.side = dist.group.WORLD
            group.backend = dist.get_default_backend_for_device(device)
            # A group of its own even where both are gloo: side messages must not queue behind gradients.
            group.main = dist.new_group(backend=group.backend)
        except (RuntimeError, ValueError) as error:
            raise Failure(
                Exit.PEER_UNAVAILABLE,
                f"rank {place.rank} of {place.world} met nobody at {place.host}:{place.port}: {_first(error)}",
                "look for the rank that failed first; see that all ranks reach that address",
            ) from error
        return group

    def part(self, ranks: Sequence[int]) -> Group:
        """Some of the processes, this one among them, as a group of their own; each of them calls it."""
        # No other group of the same ranks: each has threads and connections of its own.
        if len(ranks) == self.world:
            return self
        part = Group(list(ranks).index(self.rank), len(ranks))
        part.backend = self.backend
        if part.world > 1:
            # Only these ranks meet: a group of all is made of as many parts as there are.
            part.side = dist.new_group(list(ranks), backend="gloo", use_local_synchronization=True)
            part.main = dist.new_group(list(ranks), backend=self.backend, use_local_synchronization=True)
        return part

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        return [json.loads(message) for message in self.gather_bytes(json.dumps(value).encode())]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Every rank's message, in rank order, on every rank."""
        if self.world == 1:
            return [message]
        try:
            return _gather(self, message)
        except RuntimeError as error:
            raise self.translate(error) or error from error

    def broadcast_json(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        try:
            return json.loads(_broadcast(self, json.dumps(value).encode() if self.leader else b""))
        except RuntimeError as error:
            raise self.translate(error) or error from error

    def added(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all ranks, on every rank, of as many whole numbers; modulo 2^64, with a sign."""
        return self._combined(torch.tensor(numbers, dtype=torch.int64, device="cpu"), torch.add)

    def least(self, numbers: Sequence[float]) -> list[float]:
        """The smallest of all ranks' numbers (float64), of each of as many, on every rank."""
        return self._combined(torch.tensor(numbers, dtype=torch.float64, device="cpu"), torch.minimum)

    def most(self, count: int) -> int:
        """The largest of all ranks' whole numbers, below 2^53, on every rank."""
        return -int(self.least([-count])[0])

    def agree(self, name: str, value: Any) -> None:
        """Raises Failure(78) where the ranks' values, as JSON has them, differ."""
        # Of many ranks few differ, if any: only then do all tell all.
        mine = _digest(value)
        if any(self.added([self.broadcast_json(mine) != mine])):
            require_same(name, self.gather_json(value))

    def barrier(self) -> None:
        """Wait for every rank."""
        self.added([0])

    def close(self) -> None:
        """Leave; the other ranks may be gone already."""
        # It may have failed to join, and is closed all the same.
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def translate(self, error: RuntimeError) -> Failure | None:
        """Failure(69) where a RuntimeError of torch means that a peer is gone, else None."""
        text = str(error)
        if self.world > 1 and any(sign in text for sign in _PEER_LOST):
            return Failure(
                Exit.PEER_UNAVAILABLE,
                f"lost a peer: {_first(error)}",
                "look for the rank that failed first",
                rank=self.rank,
            )
        return None

    def _combined(self, row: torch.Tensor, combine: Combine) -> list[Any]:
        try:
            for exchange in exchanges(row, self.rank, self.world, combine):
                for work in start(exchange, self.side, ADDED):
                    work.wait()
        except RuntimeError as error:
            raise self.translate(error) or error from error
        return row.tolist()


def require_same(name: str, values: Sequence[Any]) -> None:
    """Raises Failure(78) where the ranks' values, in their order, differ."""
    others = [rank for rank, other in enumerate(values) if other != values[0]]
    if others:
        raise Failure(
            Exit.BAD_RECIPE,
            f"{name} differs between ranks: rank 0 has {values[0]}, rank {others[0]} has {values[others[0]]}",
            f"start every rank with the same {name}",
            rank=others,
        )


_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "NCCL error",
    "gloo",
    "Broken pipe",
)


def _broadcast(group: Group, message: bytes) -> bytes:
    length = torch.tensor([len(message)], device="cpu")
    dist.broadcast(length, group=group.side, group_src=0)
    content = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    if group.leader:
        content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    dist.broadcast(content, group=group.side, group_src=0)
    return content.numpy().tobytes()


def _gather(group: Group, message: bytes) -> list[bytes]:
    # Lengths first: an all-gather has rows of one width, and messages differ in theirs. The device is named, since
    # a task may ask while it builds on the meta device.
    lengths = torch.zeros(group.world, dtype=torch.int64, device="cpu")
    all_gather(lengths, torch.tensor([len(message)], device="cpu"), group=group.side)
    width = int(lengths.max())
    padded = torch.frombuffer(bytearray(message.ljust(width)), dtype=torch.uint8)
    messages = torch.empty(group.world * width, dtype=torch.uint8, device="cpu")
    all_gather(messages, padded, group=group.side)
    rows = messages.numpy().reshape(group.world, width)
    return [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()


def _hosted_by_agent() -> bool:
    """Whether torchrun's agent keeps the store for its workers."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
