"""Tensors in the safetensors format, written from and read into memory by hand.

The format is 8 bytes of header length, a JSON header, and the tensors' bytes. Writing it here lets each tensor go to
the file without a copy of the whole; reading it here lets the very bytes that were verified be the ones in use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drivetrain.checkpoint.files import chunks, written
from drivetrain.checkpoint.memory import checksum
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.spec.box import checked_shape
from drivetrain.spec.exits import Exit, Failure

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_LONGEST_HEADER = 100 << 20


def require_writable(tensors: Mapping[str, Tensor]) -> None:
    """Raises Failure(78), naming the tensor, where one cannot be in a file: a sparse or quantized one, say."""
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
            what = f"{tensor.dtype} ({tensor.layout})".replace("torch.", "")
            raise Failure(Exit.BAD_RECIPE, f"{name} is {what}, which no commit can hold", "keep it in another type")


def write_tensors(path: Path, pieces: Sequence[TensorBytes]) -> bytes:
    """A new safetensors file, durable; its header, after which the pieces' bytes follow.

    Raises Failure(83), naming the tensor, where its bytes are no longer the ones that its checksum was taken of.
    """
    header = header_of([(name, dtype, shape, data.numel()) for name, dtype, shape, data, _ in pieces])
    with written(path) as write:
        write(header)
        for piece in pieces:
            _write_piece(write, piece)
    return header


def written_size(pieces: Sequence[TensorBytes]) -> int:
    """Bytes of the file that `write_tensors` makes of these."""
    entries = [(name, dtype, shape, data.numel()) for name, dtype, shape, data, _ in pieces]
    return len(header_of(entries)) + sum(size for *_, size in entries)


def header_of(
    entries: Sequence[tuple[str, torch.dtype, tuple[int, ...], int]],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """The beginning of a file with these tensors: name, type, shape and bytes of each, in the file's order."""
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, dtype, shape, size in entries:
        stop = offset + size
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _write_piece(write: Callable[[np.ndarray], None], piece: TensorBytes) -> None:
    total = 0
    for part in chunks([piece.data.numpy()]):
        write(part)
        # In this order: a bit that flips before is in the sum, and one that flips later is not what reads back.
        total += checksum(part)
    if total % (1 << 64) != piece.checksum:
        raise Failure(
            Exit.CORRUPTION_SUSPECTED,
            f"{piece.name} changed in memory between its snapshot and its writing",
            "suspect this machine's memory; the commit before is whole",
        )


class Stored(NamedTuple):
    """A tensor as a file's header has it: bytes `start` to `stop` of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def to_json(self) -> list[Any]:
        """For the other ranks."""
        return [self.name, _NAMES[self.dtype], list(self.shape), self.start, self.stop]

    @classmethod
    def from_json(cls, value: list[Any]) -> Stored:
        """What `to_json` gave."""
        name, dtype, shape, start, stop = value
        return cls(name, _TYPES[dtype], tuple(shape), start, stop)


def header_size(beginning: bytes | memoryview, size: int) -> int:
    """How many bytes of a file of `size` bytes come before its tensors, by its first 8. Raises ValueError where it
    cannot have so many."""
    if size < 8:
        raise ValueError("shorter than its header's length")
    length = int.from_bytes(beginning[:8], "little")
    if length > min(size - 8, _LONGEST_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    return 8 + length


def parse_header(beginning: bytes | memoryview, size: int) -> list[Stored]:
    """What is in a safetensors file of `size` bytes, by its beginning, which has the whole header.

    Raises ValueError, KeyError or TypeError where lengths, shapes or offsets contradict each other or the size.
    """
    body, end, found = header_size(beginning, size), 0, []
    header = _parsed_json(bytes(beginning[8:body]))
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    header.pop("__metadata__", None)
    for name, metadata in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = _TYPES[metadata["dtype"]], metadata["shape"], metadata["data_offsets"]
        # Every byte belongs to exactly one tensor: no gap, no overlap, in the order of the offsets.
        extents = checked_shape(shape)
        if start != end or stop != end + prod(extents) * dtype.itemsize or body + stop > size:
            raise ValueError(f"{name}: offsets {start} to {stop} for shape {shape} of {metadata['dtype']}")
        found.append(Stored(name, dtype, extents, body + end, body + int(stop)))
        end = int(stop)
    if body + end != size:
        raise ValueError(f"{size - body - end} bytes beyond the last tensor")
    return found


def parse_tensors(data: memoryview) -> dict[str, Tensor]:
    """The tensors of a safetensors file's bytes; they share its memory. Raises what `parse_header` raises."""
    tensors = {}
    for name, dtype, shape, start, stop in parse_header(data, len(data)):
        if start == stop:  # `frombuffer` takes no empty ones
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        flat = torch.frombuffer(data, dtype=torch.uint8, count=stop - start, offset=start)
        tensors[name] = _typed(flat, dtype, shape)
    return tensors


def _parsed_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _typed(flat: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # A file of others may have any header, and bytes begin behind it.
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)
