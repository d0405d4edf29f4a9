"""The files of an export: weights in safetensors, mapped into memory, and a program's graph. No pickle is read."""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100 << 20
_MOST_NUMBERS = 1 << 62
_MOST_DIMENSIONS = 32
_ALLOWED = re.compile(
    r"models/model\.json|data/weights/model_weights_config\.json|data/constants/model_constants_config\.json"
    r"|data/constants/tensor_\d+|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder"
    r"|(\.data/)?(version|serialization_id)"
)
"""What an archive of `torch.export` has, without the pickles and compiled code that it might have."""

_SIZE = re.compile(
    r"(Symbol\('\w+'(, \w+=(True|False))*\)"
    r"|(Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|Eq|Ne|Ge|Gt|Le|Lt|Integer)\("
    r"|\b[su]\d+\b|[\s\d+*/(),<>=-])*"
)
_GUARD = re.compile(r"""(L(\['[^'"\\\n]*'\])+(\.size\(\)\[\d+\])?|\b(and|or|not)\b|[ \d%+*/()<>=!-])*""")
_NAME = re.compile(r"[\w.]*")
"""What graphs have for sizes, guards and names. Torch runs these as Python, whatever stands there."""


class BadExport(ValueError):  # noqa: N818 - it says what it is of
    """A file of an export that is none: which, and what is wrong with it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; export the run again, or copy the file once more")
        self.path, self.why = path, why


class _Stored(NamedTuple):
    """A tensor as a file's header has it: bytes `start` to `stop` of the file."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    start: int
    stop: int


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in the order of their names. They are the file's own bytes, which processes
    share, and are read when they are first used.

    Raises BadExport where the file contradicts itself.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            raise BadExport(path, "it is shorter than the length of its header")
        # Copied on a write: torch knows no tensors that cannot be written to.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    stored = _stored(path, mapped)
    return {each.name: _tensor(mapped, each) for each in sorted(stored, key=lambda each: each.name)}


def _stored(path: Path, mapped: mmap.mmap) -> list[_Stored]:
    """What the header says of the tensors. Each byte behind it is of exactly one of them."""
    length = int.from_bytes(mapped[:8], "little")
    if length > min(len(mapped) - 8, _LONGEST_HEADER):
        raise BadExport(path, f"a header of {length} bytes in a file of {len(mapped)}")
    header = read_json(path, mapped[8 : 8 + length])
    header.pop("__metadata__", None)
    found = [_entry(path, name, told, 8 + length) for name, told in header.items()]
    end = 8 + length
    for each in sorted(found, key=lambda each: (each.start, each.stop)):
        if each.start != end:
            raise BadExport(path, f"{each.name} begins at byte {each.start}, and the one before it ends at {end}")
        end = each.stop
    if end != len(mapped):
        raise BadExport(path, f"its tensors end at byte {end}, and it has {len(mapped)}")
    return found


def _entry(path: Path, name: str, told: Any, start: int) -> _Stored:
    """One tensor of the header; the first one begins at byte `start` of the file."""
    try:
        dtype, shape, (first, stop) = _TYPES[told["dtype"]], told["shape"], told["data_offsets"]
        # `True` is a number, too.
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError("no shape")
        if not all(type(number) is int for number in (first, stop, *shape)):
            raise ValueError("no numbers")
        if min(first, stop, *shape) < 0 or stop - first != prod(shape) * dtype.itemsize:
            raise ValueError("other numbers")
        # Also of an empty tensor: torch multiplies the other extents all the same.
        if prod(max(extent, 1) for extent in shape) >= _MOST_NUMBERS:
            raise ValueError("too large")
    except (KeyError, TypeError, ValueError) as error:
        raise BadExport(path, f"{name[:80]!r} is {str(told)[:200]}: no tensor") from error
    return _Stored(name, dtype, shape, start + first, start + stop)


def _tensor(mapped: mmap.mmap, stored: _Stored) -> Tensor:
    if stored.start == stored.stop:  # `frombuffer` takes no empty ones
        return torch.empty(stored.shape, dtype=stored.dtype)
    flat = torch.frombuffer(mapped, dtype=torch.uint8, count=stored.stop - stored.start, offset=stored.start)
    if stored.start % stored.dtype.itemsize:
        flat = flat.clone()  # to a place where numbers of this type may lie
    return flat.view(stored.dtype).reshape(stored.shape)


def read_json(path: Path, content: bytes, hook: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """An object of JSON; each that is in it goes through `hook`. Raises BadExport for anything else, and for a key that
    is there twice: others might read the other one."""

    def once(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise BadExport(path, f"{str(pairs)[:80]} has a key twice")
        return hook(found) if hook else found

    try:
        found = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadExport):
            raise
        raise BadExport(path, f"it is no JSON: {error or 'nested too deep'}") from error
    if not isinstance(found, dict):
        raise BadExport(path, f"{str(found)[:80]} in place of an object")
    return found


def load_program(path: Path) -> Any:
    """The module of a program that `torch.export.save` wrote.

    Raises BadExport where the archive has a part that torch would unpickle, or more than a graph and its constants, and
    where torch makes nothing of it.
    """
    content = path.read_bytes()
    try:
        plain = _plain(path, content)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")  # torch 2.11's own reading
            return torch.export.load(io.BytesIO(plain)).module()
    except BadExport:
        raise
    except Exception as error:  # of a file that anybody may have written, zip readers and torch raise anything
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadExport(path, f"no exported graph: {told[:200]}") from error


def _plain(path: Path, content: bytes) -> bytes:
    """The archive, written anew with the parts that were looked at, which are JSON and plain bytes: torch unpickles
    sample inputs and what a config says to be pickled, without a bound on what that may run. Another reader of
    archives may find other parts in the same file, so torch is not given it.

    Raises BadExport for other parts, and for parts that are longer than what they are stored in.
    """
    plain, seen = io.BytesIO(), set()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(plain, "w") as copy:
        parts = archive.infolist()
        # As torch writes them; what inflates has no bound, and parts that share bytes have none either.
        packed = [part for part in parts if part.compress_type != zipfile.ZIP_STORED]
        if packed or sum(part.file_size for part in parts) > len(content):
            raise BadExport(path, f"{(packed or parts)[0].filename!r} is compressed, or longer than the file")
        for part in parts:
            name = part.filename.partition("/")[2]
            if name in seen or not _ALLOWED.fullmatch(name):
                raise BadExport(path, f"an exported graph has no part {part.filename!r}")
            if name.endswith(".pt") and part.file_size:
                raise BadExport(path, f"{part.filename!r} is a pickle, which is not read")
            seen.add(name)
            copy.writestr(part.filename, _checked(path, name, archive.read(part)))
    return plain.getvalue()


def _checked(path: Path, name: str, part: bytes) -> bytes:
    """A part of an archive, where it is none that torch would run."""
    if name == "models/model.json":
        read_json(path, part, lambda told: _require_inert(path, told))
    if name.endswith("_config.json"):
        for tensor, told in read_json(path, part).get("config", {}).items():
            if told.get("use_pickle") or not re.fullmatch(r"tensor_\d+", told.get("path_name", "")):
                raise BadExport(path, f"{tensor!r} is a pickle, which is not read")
    return part


def _require_inert(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Raises BadExport where torch would run what an object of a graph says as Python: sizes, guards, and names, of
    which it writes the graph's code."""
    given = [(_SIZE, told.get("expr_str") or ""), (_NAME, told.get("name") or "")]
    given += [(_GUARD, guard) for guard in told.get("guards_code") or ()]
    given += [(_NAME, name) for name in told.get("forward_arg_names") or ()]
    for pattern, text in given:
        if not pattern.fullmatch(str(text)):
            raise BadExport(path, f"the graph has {str(text)[:80]!r} for a size, a guard or a name: that is code")
    return told
