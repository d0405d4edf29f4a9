"""Tensors in the safetensors format, written from and read into memory by hand.

The format is 8 bytes of header length, a JSON header, and the tensors' bytes. Writing it here lets each tensor go to
the file without a copy of the whole; reading it here lets the very bytes that were verified be the ones in use.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drivetrain.spec.exits import Exit, Failure

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class FileFacts:
    """What a manifest says of a file."""

    size: int
    sha256: str


class Writer:
    """Writes to a descriptor and hashes what it writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> None:
        """Write all of a bytes-like object."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._size += len(view)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def facts(self) -> FileFacts:
        """Size and hash of what was written."""
        return FileFacts(self._size, self._digest.hexdigest())


def create(path: Path) -> int:
    """Open a new file for writing, 0600; it must not be there yet, not even as a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_file(path: Path, data: bytes) -> FileFacts:
    """A new file with this content, durable."""
    descriptor = create(path)
    try:
        writer = Writer(descriptor)
        writer.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return writer.facts()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> FileFacts:
    """A new safetensors file of dense tensors of any shape and device, durable."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start on a multiple of 8
    descriptor = create(path)
    try:
        writer = Writer(descriptor)
        writer.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                writer.write(_bytes(tensor).numpy())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return writer.facts()


def _bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as uint8 [nbytes], on the CPU, without a copy where it lies there in one piece."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def read_file(path: Path) -> bytearray:
    """The bytes of a regular file; a link is refused with Failure(77).

    It is opened once: what is hashed later is what was read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise Failure(Exit.SECURITY, f"{path} is a link", "put the file itself there", file=str(path)) from error
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Failure(Exit.SECURITY, f"{path} is no regular file", "remove it", file=str(path))
        data = bytearray(status.st_size)
        at = 0
        with memoryview(data) as view:
            while count := file.readinto(view[at:]):
                at += count
    return data if at == len(data) else data[:at]


def parse_tensors(data: bytearray) -> dict[str, Tensor]:
    """The tensors of a safetensors file's bytes; they share its memory.

    Raises ValueError where lengths, shapes or offsets contradict each other or the size.
    """
    if len(data) < 8:
        raise ValueError("shorter than its header's length")
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _LONGEST_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header = json.loads(bytes(data[8 : 8 + length]))
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    header.pop("__metadata__", None)
    body, end = 8 + length, 0
    tensors = {}
    for name, facts in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = _TYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
        count = 1
        for extent in shape:
            if not isinstance(extent, int) or extent < 0:
                raise ValueError(f"{name}: shape {shape}")
            count *= extent
        if start != end or stop - start != count * dtype.itemsize or body + stop > len(data):
            raise ValueError(f"{name}: offsets {start} to {stop} for shape {shape} of {facts['dtype']}")
        end = stop
        flat = torch.frombuffer(data, dtype=torch.uint8, count=stop - start, offset=body + start) if count else None
        tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else _typed(flat, dtype, shape)
    if body + end != len(data):
        raise ValueError(f"{len(data) - body - end} bytes beyond the last tensor")
    return tensors


def _typed(flat: Tensor, dtype: torch.dtype, shape: list[int]) -> Tensor:
    aligned = flat if flat.data_ptr() % dtype.itemsize == 0 else flat.clone()
    return aligned.view(dtype).reshape(shape)
