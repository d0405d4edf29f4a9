"""Samples on their way from a worker process to the trainer."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


class _Pickler(pickle.Pickler):
    """Sends tensors as arrays, by value.

    Multiprocessing's own way opens a file descriptor for each tensor, which costs more than reading a small sample.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor:
            try:
                return torch.from_numpy, (obj.numpy(),)
            except (TypeError, RuntimeError):  # a type that numpy does not know, a gradient, another layout or device
                return NotImplemented
        return NotImplemented


def pack(samples: Any) -> bytes:
    """Samples as bytes."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(samples)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """The samples that `pack` was given; only for bytes from this run's own workers."""
    return pickle.loads(packed)
