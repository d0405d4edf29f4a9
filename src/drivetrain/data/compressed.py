"""Compressed files as streams of what is in them: gzip, bzip2, xz, Zstandard."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from drivetrain.spec.exits import Exit, Failure


@contextmanager
def unpacked(path: str, packed: str) -> Iterator[tuple[BinaryIO, Any]]:
    """The raw file, and the stream of its content, which are one where `packed`, the compression's suffix, is empty.

    Raises Failure(66) for Zstandard without its library; reading raises what the formats' own libraries do.
    """
    with open(path, "rb") as raw:
        yield raw, _stream(raw, packed)


def _stream(raw: BinaryIO, packed: str) -> Any:
    match packed:
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".bz2":
            return bz2.BZ2File(raw)
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            return _Zstandard(raw)
    return raw


class _Zstandard:
    """Reads frames one after the other. The library's own reader takes a file that was cut off for a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise Failure(Exit.INPUT_MISSING, ".zst files need zstandard", "pip install 'drivetrain[data]'") from None
        self._raw, self._new, self._error = raw, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
        self._frame: Any = None
        self._rest = b""

    def read(self, size: int) -> bytes:
        """About `size` bytes; none at the end. Raises EOFError where the file is cut off or damaged."""
        parts: list[bytes] = []
        got = 0
        while got < size:
            block = self._rest or self._raw.read(1 << 14)  # little, since it may become very much
            if not block:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                break
            self._frame = self._frame or self._new()
            try:
                parts.append(self._frame.decompress(block))
            except self._error as error:
                raise EOFError(str(error)) from error
            got += len(parts[-1])
            # What is left of the block after a frame's end is the next frame's; within a frame nothing is left.
            self._rest = b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        return b"".join(parts)
