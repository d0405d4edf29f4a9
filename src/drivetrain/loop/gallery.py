"""What a task shows: texts, sounds and pictures, kept in the run directory and named in the ledger."""

from __future__ import annotations

import io
import re
import struct
import wave
import zlib
from pathlib import Path

import numpy as np
from torch import Tensor

from drivetrain.runtime.mistakes import misused
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Gallery:
    """Collects what is shown at one step, under `gallery/step-XXXXXXXX/` of the run directory; without one it keeps
    nothing."""

    def __init__(self, run: Path | None, step: int) -> None:
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

    def audio(self, name: str, sound: np.ndarray | Tensor, rate: int) -> None:
        """Let a sound be heard: `<name>.wav`, 16 bits, `rate` samples a second.

        `sound` is an array or tensor of floats, [samples] or [1, samples], between -1 and 1: what is louder is cut off.
        Raises Failure(70) for anything else, also where a number is not finite, and 77 as `text` does.
        """
        sound = _sound(name, sound)
        if not isinstance(rate, (int, np.integer)) or rate < 1:
            raise _refused("audio", name, "a whole number of samples a second", repr(rate))
        content = io.BytesIO()
        with wave.open(content, "wb") as file:
            file.setparams((1, 2, int(rate), len(sound), "NONE", ""))
            file.writeframes(np.round(np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
        self._keep(name, "wav", content.getvalue())

    def picture(self, name: str, dots: np.ndarray | Tensor) -> None:
        """Show a picture: `<name>.png`.

        `dots` is an array or tensor [height, width, 3] of red, green and blue, or [height, width] or [height, width, 1]
        of gray: uint8, or floats from 0 (black) to 1. Raises Failure(70) for anything else, and 77 as `text` does.
        """
        self._keep(name, "png", _png(_dots(name, dots)))

    def _keep(self, name: str, kind: str, content: bytes) -> None:
        if not _NAME.fullmatch(name):
            raise Failure(Exit.SECURITY, f"gallery name {name!r} is no plain file name", "use letters, digits, . _ -")
        if self._run is None:
            return
        relative = self._folder / f"{name}.{kind}"
        path = self._run / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, content)
        self.files[name] = str(relative)


_COLOURS = "uint8, or floats from 0 to 1, [height, width], [height, width, 1] or [height, width, 3]"
_LOUDNESS = "floats [samples] or [1, samples], from -1 to 1"


def _dots(name: str, given: np.ndarray | Tensor) -> np.ndarray:
    """A picture as uint8 [height, width, 3]."""
    dots, hint = _array("picture", name, given, _COLOURS), ""
    if dots.ndim == 3 and dots.shape[0] in (1, 3) and dots.shape[2] not in (1, 3):
        hint = "colours come last: permute(1, 2, 0) of a tensor, transpose(1, 2, 0) of an array"
    if dots.ndim == 2:
        dots = dots[:, :, None]
    if dots.ndim != 3 or dots.shape[2] not in (1, 3) or not dots.size:
        raise _refused("picture", name, _COLOURS, _kind_of(given), hint)
    if np.issubdtype(dots.dtype, np.floating):
        _require_between(dots, (0, 1), ("picture", name, _COLOURS))
        dots = np.round(dots * 255).astype(np.uint8)
    elif dots.dtype != np.uint8:
        raise _refused("picture", name, _COLOURS, _kind_of(given))
    return np.broadcast_to(dots, (*dots.shape[:2], 3))


def _sound(name: str, given: np.ndarray | Tensor) -> np.ndarray:
    """A sound as floats [samples]; it may be too loud."""
    sound = _array("audio", name, given, _LOUDNESS)
    if sound.ndim == 2 and sound.shape[0] == 1:
        sound = sound[0]
    if sound.ndim != 1 or not np.issubdtype(sound.dtype, np.floating):
        raise _refused("audio", name, _LOUDNESS, _kind_of(given))
    _require_between(sound, (-np.inf, np.inf), ("audio", name, _LOUDNESS))
    return sound


def _array(call: str, name: str, given: np.ndarray | Tensor, takes: str) -> np.ndarray:
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        return (given.float() if given.is_floating_point() else given).numpy()
    if isinstance(given, np.ndarray):
        return given
    raise _refused(call, name, takes, type(given).__name__, "make an array of it: numpy.asarray")


def _require_between(values: np.ndarray, limits: tuple[float, float], call: tuple[str, str, str]) -> None:
    """Raises Failure(70) where a number is not finite, or beyond the limits."""
    if values.size and not np.isfinite(values).all():
        raise _refused(*call, "numbers that are not finite")
    if values.size and not (limits[0] <= values.min() and values.max() <= limits[1]):
        hint = "scale it, or cut it off: clip(0, 1)"
        raise _refused(*call, f"floats from {values.min():.4g} to {values.max():.4g}", hint)


def _refused(call: str, name: str, takes: str, found: str, hint: str = "") -> Failure:
    return misused(f"gallery.{call}({name!r}) takes {takes}; it was given {found}", hint)


def _kind_of(given: np.ndarray | Tensor) -> str:
    return f"{str(given.dtype).removeprefix('torch.')} {list(given.shape)}"


def _png(dots: np.ndarray) -> bytes:
    """A picture of eight bits a colour (ISO 15948): signature, header, compressed rows, end."""
    height, width, _ = dots.shape
    rows = b"".join(b"\0" + row.tobytes() for row in dots)  # 0: the row is as it is
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
