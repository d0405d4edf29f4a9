"""What a task shows: texts, sounds and pictures, kept in the run directory and named in the ledger."""

from __future__ import annotations

import io
import re
import struct
import wave
import zlib
from pathlib import Path

import numpy as np

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Gallery:
    """Collects what is shown at one step, under `gallery/step-XXXXXXXX/` of the run directory."""

    def __init__(self, run: Path, step: int) -> None:
        self.step = step
        self.texts: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self._run = run
        self._folder = Path("gallery") / f"step-{step:08d}"

    def text(self, name: str, text: str) -> None:
        """Show a text; it is also written to `<name>.txt`.

        Raises Failure(77) for a name that is not letters, digits, '.', '_' and '-'.
        """
        self._keep(name, "txt", text.encode())
        self.texts[name] = text

    def audio(self, name: str, sound: np.ndarray, rate: int) -> None:
        """Let a sound be heard, float [samples], at most 1: `<name>.wav`, 16 bits, `rate` samples a second.

        What is louder is cut off. Raises as `text` does.
        """
        content = io.BytesIO()
        with wave.open(content, "wb") as file:
            file.setparams((1, 2, rate, len(sound), "NONE", ""))
            file.writeframes(np.round(np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
        self._keep(name, "wav", content.getvalue())

    def picture(self, name: str, dots: np.ndarray) -> None:
        """Show a picture, uint8 [height, width, 3]: `<name>.png`. Raises as `text` does."""
        self._keep(name, "png", _png(dots))

    def _keep(self, name: str, kind: str, content: bytes) -> None:
        if not _NAME.fullmatch(name):
            raise Failure(Exit.SECURITY, f"gallery name {name!r} is no plain file name", "use letters, digits, . _ -")
        relative = self._folder / f"{name}.{kind}"
        path = self._run / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, content)
        self.files[name] = str(relative)


def _png(dots: np.ndarray) -> bytes:
    """A picture of eight bits a colour (ISO 15948): signature, header, compressed rows, end."""
    height, width, _ = dots.shape
    rows = b"".join(b"\0" + row.tobytes() for row in dots)  # 0: the row is as it is
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
