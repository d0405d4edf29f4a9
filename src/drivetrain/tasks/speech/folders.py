"""A folder of recordings of any length through networks, chunk by chunk: memory does not grow with a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.inputs import find_inputs
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.audio import require_libraries
from drivetrain.tasks.speech.recipe import Framed

if TYPE_CHECKING:
    from soundfile import SoundFile

INCLUDE = ("*.wav", "*.flac")
_BLOCK = 1 << 16  # frames that are read at a time

Change = Callable[[Tensor], Tensor]
"""Makes sound, float32 [channels, samples], of sound of the same shape; each channel by itself."""
Report = Callable[[int, int], None]
"""Is told how many frames have been read, of how many."""


@dataclass
class Converted:
    """What became of a folder's files: those written, and why the others were not."""

    written: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def find_sounds(source: Path) -> dict[Path, int]:
    """The sound files below a folder, and how many frames each promises; 0 where that cannot be told.

    Raises Failure(66) where the folder or a library is missing, or it holds no sound file.
    """
    require_libraries(("soundfile", "soxr"))
    import soundfile

    if not source.is_dir():
        raise Failure(Exit.INPUT_MISSING, f"{source} is no folder", "give a folder of wav and flac files")
    found = {}
    for each in find_inputs([str(source)], INCLUDE):
        path = Path(each.path)
        try:
            found[path] = soundfile.info(str(path)).frames
        except RuntimeError:
            # Converting it will say why.
            found[path] = 0
    return found


def convert(
    change: Change, settings: Framed, sounds: Mapping[Path, int], source: Path, to: Path, report: Report
) -> Converted:
    """Write each file of `source`, changed, to its place below `to`: same rate, channels, length, format.

    A file that cannot be read is left out and named in the result. Raises Failure(73) where `to` cannot be used or is
    not empty, 74 where a file cannot be written.
    """
    import soundfile

    _require_empty(to)
    done = Converted()
    total = max(1, sum(sounds.values()))
    before = accumulate(sounds.values(), initial=0)
    for path, start in zip(sounds, before, strict=False):
        target = to / path.relative_to(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _convert(change, settings, path, target, lambda frames, start=start: report(start + frames, total))
            done.written.append(target)
        except (soundfile.SoundFileError, ValueError) as error:
            done.failed[path] = str(error)
        except OSError as error:
            raise Failure(Exit.STORAGE, f"{target}: {error}", "make room, or choose another place") from error
    return done


def enhanced(
    change: Change, settings: Framed, blocks: Iterable[np.ndarray], rate: int, channels: int
) -> Iterator[np.ndarray]:
    """Blocks of sound, float32 [frames, channels], changed at the settings' rate, and back at theirs.

    Each channel is heard by itself. What comes out is as long as what went in, or a little longer.
    """

    def enhance(chunk: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return change(torch.from_numpy(np.ascontiguousarray(chunk.T))).numpy().T

    heard = resampled(blocks, rate, settings.rate, channels)
    return resampled(overlap_added(heard, enhance, settings.chunk), settings.rate, rate, channels)


def overlap_added(
    blocks: Iterable[np.ndarray], enhance: Callable[[np.ndarray], np.ndarray], size: int
) -> Iterator[np.ndarray]:
    """`enhance` on chunks [size, channels] that overlap by half, one fading into the next by a straight line.

    Where `enhance` changes nothing, neither does this, up to rounding. The last chunk is filled up with silence, which
    comes out as well.
    """
    half = size // 2
    rise = ((np.arange(half, dtype=np.float32) + 0.5) / half)[:, None]
    tail = None
    for chunk in _chunks(blocks, size, half):
        found = enhance(chunk)
        if tail is None:
            yield found[:half]
        else:
            yield tail[:half] * (1 - rise) + found[:half] * rise
        tail = found[half:]
    if tail is not None:
        yield tail


def resampled(blocks: Iterable[np.ndarray], rate: int, wanted: int, channels: int) -> Iterator[np.ndarray]:
    """The same sound at another rate, block by block; blocks are float32 [frames, channels]."""
    import soxr

    if rate == wanted:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, wanted, channels, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block)).reshape(-1, channels)
    yield stream.resample_chunk(np.zeros((0, channels), np.float32), last=True).reshape(-1, channels)


def _convert(change: Change, settings: Framed, path: Path, target: Path, told: Callable[[int], None]) -> None:
    """One file. It appears under its name when it is whole."""
    import soundfile

    partial = target.with_name(f".{target.name}.partial")
    try:
        with soundfile.SoundFile(path) as heard:
            how = {"samplerate": heard.samplerate, "channels": heard.channels, "subtype": heard.subtype}
            with soundfile.SoundFile(partial, "w", **how, format=heard.format) as written:
                left = heard.frames
                blocks = _told(heard, told)
                for block in enhanced(change, settings, blocks, heard.samplerate, heard.channels):
                    _write(written, block[:left])
                    left -= min(left, len(block))
            if left:
                raise ValueError(f"it ends {left} frames early")
            if not heard.frames:
                raise ValueError("it holds no sound")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _write(written: SoundFile, block: np.ndarray) -> None:
    """Raises OSError, so that a full disk is not taken for a file that cannot be read."""
    import soundfile

    try:
        written.write(block)
    except soundfile.SoundFileError as error:
        raise OSError(str(error)) from error


def _told(heard: SoundFile, told: Callable[[int], None]) -> Iterator[np.ndarray]:
    """The blocks of a file; how many frames have been read is told when the next is asked for."""
    for block in heard.blocks(blocksize=_BLOCK, dtype="float32", always_2d=True):
        yield block
        told(heard.tell())


def _chunks(blocks: Iterable[np.ndarray], size: int, hop: int) -> Iterator[np.ndarray]:
    """Chunks of `size` frames, each `hop` after the one before, the last filled up with zeros."""
    kept, first = None, True
    for block in blocks:
        if kept is not None:
            block = np.concatenate([kept, block])
        kept = block
        while len(kept) >= size:
            yield kept[:size]
            kept, first = kept[hop:], False
    # After the first chunk, what is kept begins with frames that the last chunk has had already.
    seen = 0 if first else size - hop
    if kept is not None and len(kept) > seen:
        yield np.pad(kept, ((0, size - len(kept)), (0, 0)))


def _require_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        full = any(folder.iterdir())
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be used: {error}", "choose another folder") from error
    if full:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} is not empty", "choose a new folder")
