"""The samples of a user's own sources: what they are made of, and what they draw."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from drivetrain.runtime.seeds import seed_generators

_CPU = torch.device("cpu")


def seed_sample(value: int) -> None:
    """Seed `random`, `numpy.random` and `torch` (64 bits) for a sample that is read next."""
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    seed_generators(_CPU, value)


def absorb(content: Any, sample: Any) -> None:
    """Add a sample's canonical bytes to a hash. Of a class that is not known here, only the name enters."""
    if isinstance(sample, np.ndarray) and sample.dtype.hasobject:
        sample = sample.tolist()  # its bytes are addresses
    elif isinstance(sample, np.generic):
        sample = sample.item()  # whose words do not change with numpy's version
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().contiguous()
        content.update(f"{sample.dtype}{tuple(sample.shape)}".encode())
        if sample.ndim:
            content.update(sample.view(torch.uint8).numpy().tobytes())
        else:  # which cannot be viewed as bytes
            content.update(repr(sample.item()).encode())
    elif isinstance(sample, np.ndarray):
        content.update(f"{sample.dtype}{sample.shape}".encode() + np.ascontiguousarray(sample).tobytes())
    elif isinstance(sample, Mapping):
        for key in sample:
            content.update(repr(key).encode())
            absorb(content, sample[key])
    elif isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        content.update(str(len(sample)).encode())
        for part in sample:
            absorb(content, part)
    elif isinstance(sample, (str, bytes, int, float, complex, type(None))):
        content.update(repr(sample).encode())
    else:
        content.update(type(sample).__qualname__.encode())
