"""Tensors as they are at one moment: copied to the host with a checksum that was taken from the live ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.checkpoint.memory import buffer, checksum, copied, touch
from drivetrain.runtime.device import has_own_memory

_WORDS = (1 << 64) - 1


class TensorBytes(NamedTuple):
    """One tensor's bytes (uint8 [nbytes], on the CPU), and the checksum of the live ones."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: Tensor
    checksum: int


class Arena:
    """Host memory for one snapshot at a time, used again for the next."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._reserving = Lock()

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Have the memory ready, so that the first snapshot is as fast as the others."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        with self._reserving:  # a first snapshot that comes early waits for this memory, and takes none of its own
            if size <= self._memory.numel():
                return
            if any(has_own_memory(tensor.device) for tensor in tensors.values()):
                self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            else:
                view = buffer(size)
                touch(view)
                self._memory = torch.frombuffer(view, dtype=torch.uint8)

    def take(self, tensors: Mapping[str, Tensor]) -> list[TensorBytes]:
        """Copies of all tensors; the ones of the snapshot before are overwritten."""
        self.reserve(tensors)
        places, at = [], 0
        for name in wide_first({name: tensor.dtype for name, tensor in tensors.items()}):
            tensor = tensors[name]
            places.append((name, tensor, self._memory[at : at + tensor.nbytes]))
            at += tensor.nbytes
        sums = _copy([(_flat(tensor), room) for _, tensor, room in places])
        pieces = []
        for (name, tensor, room), total in zip(places, sums, strict=True):
            pieces.append(TensorBytes(name, tensor.dtype, tuple(tensor.shape), room, total))
        return pieces


def wide_first(types: Mapping[str, torch.dtype]) -> list[str]:
    """Names of tensors by the width of their types: then each starts on a multiple of its own width, whatever the
    sizes."""
    return sorted(types, key=lambda name: -types[name].itemsize)


def pieces_of(tensors: Mapping[str, Tensor]) -> list[TensorBytes]:
    """The tensors themselves, without a copy of those that lie on the CPU in one piece; in the order of `Arena.take`,
    so that a commit has the same bytes either way."""
    pieces = []
    for name in wide_first({name: tensor.dtype for name, tensor in tensors.items()}):
        tensor = tensors[name]
        data = _flat(tensor).cpu()
        pieces.append(TensorBytes(name, tensor.dtype, tuple(tensor.shape), data, checksum(data.numpy())))
    return pieces


def put(pieces: Mapping[str, TensorBytes], tensors: Mapping[str, Tensor]) -> str | None:
    """Copy pieces back into tensors of their types and shapes; the first one whose bytes are no longer those of its
    checksum, None where there is none.

    Nothing is counted as a change in place: this is no step of training.
    """
    pairs = []
    for name, piece in pieces.items():
        target = tensors[name].data  # without torch's count of changes
        if target.device.type == "cpu" and target.is_contiguous():
            pairs.append((piece.data.numpy(), target.reshape(-1).view(torch.uint8).numpy()))
        else:
            target.copy_(piece.data.view(piece.dtype).reshape(piece.shape), non_blocking=True)
            pairs.append((piece.data.numpy(), None))
    for piece, total in zip(pieces.values(), copied(pairs), strict=True):
        if total != piece.checksum:
            return piece.name
    return None


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The checksum of each live tensor, as pieces have it; nothing is copied, and a device is waited for once."""
    sums = _on_host([_sum(_flat(tensor)) for tensor in tensors.values()])
    return dict(zip(tensors, sums, strict=True))


def _flat(tensor: Tensor) -> Tensor:
    """The tensor's memory as uint8 [nbytes], without a copy where it lies in one piece."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[int]:
    """Copy from live tensors to room on the host; the checksums of what was copied from."""
    if all(live.device.type == "cpu" for live, _ in pairs):
        return copied([(live.numpy(), room.numpy()) for live, room in pairs])
    for live, room in pairs:
        room.copy_(live, non_blocking=True)
    return _on_host([_sum(live) for live, _ in pairs])


def _sum(live: Tensor) -> int | Tensor:
    """The checksum, on a device as a tensor that may still be on its way."""
    if live.device.type == "cpu":
        return checksum(live.numpy())
    whole = live.numel() & ~7
    words = live[:whole].view(torch.int64).sum()
    tail = int.from_bytes(bytes(live[whole:].tolist()), "little")  # waits, but only for odd sizes
    return words + tail


def _on_host(sums: Sequence[int | Tensor]) -> list[int]:
    """The sums as numbers; one wait for all that are on a device, after which the copies are complete too."""
    on_device = [total for total in sums if isinstance(total, Tensor)]
    if not on_device:
        return [total for total in sums if isinstance(total, int)]
    torch.accelerator.synchronize()
    # Stacked, so that they come to the host in one transfer.
    arrived = iter(torch.stack(on_device).tolist())
    found: list[int] = []
    for total in sums:
        if isinstance(total, Tensor):
            total = next(arrived) & _WORDS
        found.append(total)
    return found
