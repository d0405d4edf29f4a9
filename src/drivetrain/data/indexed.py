"""Token files with an index of their documents: our own, and Megatron's `.bin` + `.idx`.

Ours is three files. `NAME.bin`: the tokens. `NAME.documents`: where documents begin. `NAME.json`: the manifest, with
sizes and digests. Numbers are little-endian everywhere.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from drivetrain.data.tokenizers import BYTES, Tokenizer, open_tokenizer
from drivetrain.spec.exits import Exit, Failure

_MAGIC, _HEADER = b"DTDOCIDX", struct.Struct("<8sQQQ")  # magic, version, documents, tokens; then int64 [documents + 1]
_MEGATRON, _MEGATRON_HEADER = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")  # magic, version, dtype, sequences, documents
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_BLOCK = 1 << 20  # numbers that are held at a time
_SUFFIXES = (".bin", ".idx", ".json", ".documents")
_HINT = "prepare it again"


@dataclass(frozen=True)
class Indexed:
    """An opened token file: `tokens` and `offsets` [documents + 1] are memory-mapped where they can be.

    Document d is tokens[offsets[d] : offsets[d + 1]]. `manifest` is empty for a Megatron file from elsewhere, `index`
    the file of the boundaries.
    """

    name: Path
    tokens: np.ndarray
    offsets: np.ndarray
    manifest: dict[str, Any]
    index: Path

    @property
    def data(self) -> Path:
        """The file of the tokens."""
        return beside(self.name, ".bin")


def name_of(path: str | Path) -> Path:
    """What the files of a set are called, without suffix, from any of them or from that name itself."""
    text = str(path)
    for suffix in _SUFFIXES:
        if text.endswith(suffix):
            return Path(text.removesuffix(suffix))
    return Path(text)


def beside(name: Path, suffix: str) -> Path:
    """A file of a set; the name may hold dots."""
    return name.with_name(name.name + suffix)


def open_indexed(path: str | Path) -> Indexed:
    """Open a prepared file, or a Megatron one where the path is its `.idx` or there is no manifest.

    Headers, sizes and boundaries are checked, tokens are not read. Raises Failure(66) where a file is missing, 65 where
    the index does not fit its file.
    """
    name = name_of(path)
    manifest: dict[str, Any] = {}
    if beside(name, ".json").is_file():
        manifest = read_manifest(name)
    megatron = manifest.get("format") == "megatron" or not beside(name, ".documents").is_file()
    # Both indexes may lie there: the one that was named is meant.
    if str(path).endswith(".idx") and not megatron:
        megatron, manifest = True, {}
    for suffix in (".bin", ".idx" if megatron else ".documents"):
        if not (file := beside(name, suffix)).is_file():
            hint = "give the name that `drivetrain data prepare --to` was given, or a Megatron .idx beside its .bin"
            raise Failure(Exit.INPUT_MISSING, f"no {file}", hint)
    if megatron:
        return _open_megatron(name, manifest)
    if not manifest:
        raise Failure(Exit.INPUT_MISSING, f"no manifest {beside(name, '.json')}", _HINT)
    return _open_own(name, manifest)


def read_manifest(name: Path) -> dict[str, Any]:
    """The manifest of a prepared file. Raises Failure(65) where it is damaged."""
    path = beside(name, ".json")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and manifest["prepared"] == 1 and isinstance(manifest["files"], dict):
            return manifest
    except (OSError, ValueError, KeyError):
        pass
    raise Failure(Exit.BAD_DATA, f"{path} is no manifest of a token file", _HINT, file=str(path))


def tokenizer_of(path: str | Path) -> Tokenizer | None:
    """The tokenizer that a file was prepared with; None where nothing says so. Raises as `tokenizer_content`."""
    content = tokenizer_content(path)
    if content is None:
        return None
    return open_tokenizer(None if isinstance(content, str) else content)


def tokenizer_content(path: str | Path) -> bytes | Literal["bytes"] | None:
    """The tokenizer.json that a file was prepared with, or `bytes`; None where nothing says so.

    Raises Failure(65) where the one beside the file is another.
    """
    name = name_of(path)
    if not beside(name, ".json").is_file():
        return None
    digest = read_manifest(name).get("tokenizer")
    if digest == BYTES:
        return BYTES
    kept = beside(name, ".tokenizer.json")
    if not kept.is_file():
        return None
    content = kept.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise Failure(Exit.BAD_DATA, f"{kept} is not what its manifest says", _HINT, file=str(kept))
    return content


def describe(path: str | Path) -> dict[str, Any]:
    """Sizes and counts of a file, as plain data."""
    opened = open_indexed(path)
    manifest, count = opened.manifest, len(opened.offsets) - 1
    shortest, longest = _extremes(opened.offsets)
    about = {
        "name": str(opened.name),
        "format": manifest.get("format", "megatron"),
        "tokens": len(opened.tokens),
        "documents": count,
        "shortest": shortest,
        "longest": longest,
        "mean": round(len(opened.tokens) / max(1, count), 1),
        "dtype": opened.tokens.dtype.name,
        "bytes": opened.data.stat().st_size + opened.index.stat().st_size,
    }
    for key in ("vocabulary", "largest", "eod", "tokenizer", "empty"):
        if key in manifest:
            about[key] = manifest[key]
    if manifest:
        about |= {"inputs": len(manifest["inputs"]), "bad": len(manifest["bad"])}
    return about


def _extremes(offsets: np.ndarray) -> tuple[int, int]:
    """The shortest and the longest document, block by block; 0 where there is none."""
    lows: list[int] = []
    highs: list[int] = []
    for first in range(0, len(offsets), _BLOCK):
        lengths = np.diff(offsets[first : first + _BLOCK + 1])
        if len(lengths):
            lows.append(int(lengths.min()))
            highs.append(int(lengths.max()))
    return min(lows, default=0), max(highs, default=0)


def write_own(lengths: Path, dtype: str, to: BinaryIO) -> None:
    """Write the index of documents whose lengths are a raw int64 file; memory does not grow with it."""
    count, tokens = lengths.stat().st_size // 8, sum(int(block.sum()) for block in _blocks(lengths))
    to.write(_HEADER.pack(_MAGIC, 1, count, tokens) + bytes(8))
    start = 0
    for block in _blocks(lengths):
        ends = start + np.cumsum(block, dtype="<i8")
        to.write(ends.tobytes())
        start = int(ends[-1])


def write_megatron(lengths: Path, dtype: str, to: BinaryIO) -> None:
    """Write Megatron's index: each document is one sequence. Raises Failure(65) where one is too long for int32."""
    count, width = lengths.stat().st_size // 8, np.dtype(dtype).itemsize
    code = next(code for code, name in _CODES.items() if name == dtype)
    to.write(_MEGATRON_HEADER.pack(_MEGATRON, 1, code, count, count + 1))
    for block in _blocks(lengths):
        if int(block.max()) > np.iinfo(np.int32).max:
            cause = f"a document of {int(block.max())} tokens is too long for Megatron's format"
            raise Failure(Exit.BAD_DATA, cause, "cut the text into more documents, or use --format drivetrain")
        to.write(block.astype("<i4").tobytes())
    start = 0
    for block in _blocks(lengths):
        ends = start + np.cumsum(block, dtype="<i8")
        to.write(((ends - block) * width).astype("<i8").tobytes())
        start = int(ends[-1])
    for first in range(0, count + 1, _BLOCK):
        to.write(np.arange(first, min(first + _BLOCK, count + 1), dtype="<i8").tobytes())


def _blocks(lengths: Path) -> Iterator[np.ndarray]:
    with lengths.open("rb") as file:
        while block := file.read(8 * _BLOCK):
            yield np.frombuffer(block, "<i8")


def _open_own(name: Path, manifest: dict[str, Any]) -> Indexed:
    index, data = beside(name, ".documents"), beside(name, ".bin")
    dtype = np.dtype(_dtype(manifest, index)).newbyteorder("<")
    with index.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:8] != _MAGIC:
        raise _misfit(index, "it is no index of documents")
    _, version, count, tokens = _HEADER.unpack(header)
    if version != 1:
        raise _misfit(index, f"version {version} is not known")
    if index.stat().st_size != _HEADER.size + 8 * (count + 1):
        raise _misfit(index, f"its size is not that of {count} documents")
    if data.stat().st_size != tokens * dtype.itemsize:
        raise _misfit(index, f"{data} has {data.stat().st_size} bytes, not {tokens} tokens of {dtype.name}")
    offsets = np.memmap(index, "<i8", "r", _HEADER.size, (count + 1,))
    if offsets[0] != 0 or offsets[-1] != tokens or not _ascending(offsets):
        raise _misfit(index, "its boundaries do not ascend from 0 to the number of tokens")
    return Indexed(name, _mapped(data, dtype), offsets, manifest, index)


def _open_megatron(name: Path, manifest: dict[str, Any]) -> Indexed:
    index, data = beside(name, ".idx"), beside(name, ".bin")
    with index.open("rb") as file:
        header = file.read(_MEGATRON_HEADER.size)
    if len(header) < _MEGATRON_HEADER.size or header[:9] != _MEGATRON:
        raise _misfit(index, "it is no Megatron index")
    _, version, code, sequences, boundaries = _MEGATRON_HEADER.unpack(header)
    if version != 1 or code not in _CODES:
        raise _misfit(index, f"version {version} or type {code} is not known")
    if _CODES[code].startswith("float"):
        raise _misfit(index, f"{_CODES[code]} is no type of tokens")
    if index.stat().st_size != _MEGATRON_HEADER.size + 12 * sequences + 8 * boundaries or not boundaries:
        raise _misfit(index, f"its size is not that of {sequences} sequences and {boundaries} boundaries")
    dtype = np.dtype(_CODES[code]).newbyteorder("<")
    at = _MEGATRON_HEADER.size
    lengths = _numbers(index, "<i4", at, sequences)
    pointers = _numbers(index, "<i8", at + 4 * sequences, sequences)
    documents = _numbers(index, "<i8", at + 12 * sequences, boundaries)
    ends = _checked_ends(lengths, pointers, dtype.itemsize, data.stat().st_size, index)
    if documents[0] != 0 or documents[-1] != sequences or not _ascending(documents):
        raise _misfit(index, "its documents do not ascend from 0 to the number of sequences")
    return Indexed(name, _mapped(data, dtype), ends[documents], manifest, index)


def _checked_ends(lengths: np.ndarray, pointers: np.ndarray, width: int, size: int, index: Path) -> np.ndarray:
    """Where sequences begin and end, in tokens, int64 [sequences + 1]: back to back, from 0 to the file's end."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=ends[1:])
    if len(lengths) and int(lengths.min()) < 0:
        raise _misfit(index, "a sequence has a negative length")
    wrong = np.flatnonzero(pointers != ends[:-1] * width)
    if len(wrong):
        at = int(wrong[0])
        raise _misfit(index, f"sequence {at} begins at byte {int(pointers[at])}, where {int(ends[at]) * width} is due")
    if int(ends[-1]) * width != size:
        raise _misfit(index, f"its sequences take {int(ends[-1]) * width} bytes, the .bin has {size}")
    return ends


def _dtype(manifest: dict[str, Any], index: Path) -> str:
    dtype = manifest.get("dtype")
    if dtype not in ("uint16", "uint32", "int32"):
        raise _misfit(index, f"the manifest's dtype is {dtype!r}")
    return dtype


def _numbers(path: Path, dtype: str, at: int, count: int) -> np.ndarray:
    if not count:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", at, (count,))


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r")


def _ascending(values: np.ndarray) -> bool:
    """Whether no value is below the one before, block by block."""
    # One value more than a block, so that its last one is compared with the next one's first.
    starts = range(0, len(values), _BLOCK)
    return all((np.diff(values[first : first + _BLOCK + 1]) >= 0).all() for first in starts)


def _misfit(index: Path, why: str) -> Failure:
    return Failure(Exit.BAD_DATA, f"{index}: {why}", "see that it belongs to the .bin beside it", file=str(index))
