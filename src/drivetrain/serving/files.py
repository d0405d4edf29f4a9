"""The files of an export: weights in safetensors, mapped into memory, and a program's graph. No pickle is read."""

from __future__ import annotations

import io
import json
import mmap
import re
import warnings
import zipfile
from math import prod
from pathlib import Path
from typing import Any

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


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in the order of their names. They are the file's own bytes, which processes
    share, and are read when they are first used.

    Raises ValueError where the file contradicts itself.
    """
    with open(path, "rb") as file:
        # Copied on a write: torch knows no tensors that cannot be written to.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(mapped[:8], "little")
    if start > len(mapped):
        raise ValueError(f"{path}: its header is longer than the file")
    header = json.loads(mapped[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, told in sorted(header.items()):
        dtype, shape, (first, stop) = _TYPES[told["dtype"]], told["shape"], told["data_offsets"]
        if stop - first != prod(shape) * dtype.itemsize or first < 0 or start + stop > len(mapped):
            raise ValueError(f"{path}: {name} has bytes {first} to {stop} for shape {shape} of {told['dtype']}")
        if first == stop:  # `frombuffer` takes no empty ones
            found[name] = torch.empty(shape, dtype=dtype)
            continue
        flat = torch.frombuffer(mapped, dtype=torch.uint8, count=stop - first, offset=start + first)
        if (start + first) % dtype.itemsize:
            flat = flat.clone()  # to a place where numbers of this type may lie
        found[name] = flat.view(dtype).reshape(shape)
    return found


def load_program(path: Path) -> Any:
    """The module of a program that `torch.export.save` wrote.

    Raises ValueError where the archive has a part that torch would unpickle, or more than a graph and its constants.
    """
    content = path.read_bytes()
    _require_plain(path, content)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # of torch 2.11's own reading
        return torch.export.load(io.BytesIO(content)).module()


def _require_plain(path: Path, content: bytes) -> None:
    """Raises ValueError where `torch.export.load` would find more in this archive than JSON and plain bytes: it
    unpickles sample inputs and what a config says to be pickled, without a bound on what that may run."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        seen = set()
        for part in archive.infolist():
            name = part.filename.partition("/")[2]
            if name in seen or not _ALLOWED.fullmatch(name):
                raise ValueError(f"{path}: an exported graph has no part {part.filename!r}")
            if name.endswith(".pt") and part.file_size:
                raise ValueError(f"{path}: {part.filename!r} is a pickle, which is not read")
            if name == "models/model.json":
                json.loads(archive.read(part), object_hook=lambda told: _require_inert(path, told))
            if name.endswith("_config.json"):
                for tensor, told in json.loads(archive.read(part)).get("config", {}).items():
                    if told.get("use_pickle") or not re.fullmatch(r"tensor_\d+", told.get("path_name", "")):
                        raise ValueError(f"{path}: {tensor!r} is a pickle, which is not read")
            seen.add(name)


def _require_inert(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError where torch would run what an object of a graph says as Python: sizes, guards, and names, of
    which it writes the graph's code."""
    given = [(_SIZE, told.get("expr_str") or ""), (_NAME, told.get("name") or "")]
    given += [(_GUARD, guard) for guard in told.get("guards_code") or ()]
    given += [(_NAME, name) for name in told.get("forward_arg_names") or ()]
    for pattern, text in given:
        if not pattern.fullmatch(str(text)):
            raise ValueError(f"{path}: the graph has {str(text)[:80]!r} for a size, a guard or a name: that is code")
    return told
