"""The hash of strings that never changes, of Arrow's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivetrain.serving.hashing import hash_bytes
from drivetrain.serving.hashing import rows_of as rows_of


def hash_strings(array: Any, seed: int = 0) -> np.ndarray:
    """uint64 of each string of an Arrow array of strings or bytes (large ones too), by `hash_bytes`; a null hashes as
    an empty string."""
    if array.null_count:  # whose bytes may be anything
        array = array.fill_null("")
    offsets, data = _parts(array)
    return hash_bytes(data, offsets, seed)


def _parts(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """An Arrow array's offsets, int32 or int64 [strings + 1], and the bytes that they count in."""
    import pyarrow as pa

    if not len(array):  # it may have no buffers
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, np.frombuffer(data or b"", np.uint8)
