"""Sound in files: found, examined once, and read in part, mono and at the rate that is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import FileStamp, file_digest, remembered_each
from drivetrain.data.inputs import find_inputs
from drivetrain.data.split import choose, hashed
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.recipe import Folder

LIBRARIES = ("soundfile", "soxr", "scipy")
_BLOCK = 1 << 16  # frames that are decoded at a time
# Frames that are read beyond a segment's end, since resampling sees what is around.
_MARGIN = 64
_CUT = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)  # libsndfile's words for it
_UNKNOWN = 0x7FFFFFFF  # bytes from which a wav header means that it was written to a pipe


@dataclass(frozen=True)
class Clip:
    """One file: `frames` of sound, `rate` of them a second."""

    seen: FileStamp
    frames: int
    rate: int


@dataclass(frozen=True)
class Shelf:
    """The files of a folder's part, by their paths below it.

    `keys` (uint64) decide parts; `marks` say what the files hold; `skipped` are those that cannot be read, and why.
    """

    clips: tuple[Clip, ...]
    keys: np.ndarray
    marks: tuple[str, ...]
    skipped: tuple[str, ...]


def require_libraries(names: Sequence[str] = LIBRARIES, extra: str = "speech") -> None:
    """Raises Failure(66) where a library is missing; the extra has all of them."""
    for name in names:
        if find_spec(name) is None:
            raise Failure(Exit.INPUT_MISSING, f"sound needs {name}", f"pip install 'drivetrain[{extra}]'")


def shelf(folder: Folder, rate: int, cache: Path, *, skip: bool) -> Shelf:
    """All files of a folder, each decoded once to know that it can be read; `cache` remembers what was found.

    Raises Failure(66) where a path is missing, 65 where a file cannot be read, unless these are to be skipped, and
    where no file is left or the folder's key does not fit a path.
    """
    good, bad = _sorted_out(folder, rate, cache)
    if bad and not skip:
        raise _unreadable(bad)
    if not good:
        raise Failure(Exit.BAD_DATA, f"{folder.path} has no sound that can be read", "look at path and include")
    names, clips, marks = [], [], []
    for path, known in good.items():
        # Paths below the folder, so that a copy of it elsewhere has the same fingerprint and the same parts.
        name = _below(Path(folder.path), Path(path))
        names.append(name)
        clips.append(Clip(FileStamp.now(path), known["frames"], known["rate"]))
        marks.append(f"{name} {json.dumps(known)}")
    keys = hashed(_deciding(folder, name) for name in names)
    skipped = tuple(f"{path}: {why}" for path, why in bad.items())
    return Shelf(tuple(clips), keys, tuple(marks), skipped)


def _sorted_out(folder: Folder, rate: int, cache: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What is known of a folder's files that can be read, and why the others cannot, by path."""
    paths = [found.path for found in find_inputs([folder.path], folder.include)]
    # Arrays do not tell their rate, so what is remembered of them holds for the rate that they were taken to have.
    array_rate = getattr(folder, "array_rate", None) or rate
    answers = remembered_each(paths, cache, f"sound {array_rate}", partial(_examined, rate=array_rate))
    good, bad = {}, {}
    for path, answer in zip(paths, answers, strict=True):
        known = json.loads(answer)
        if "unreadable" in known:
            bad[path] = known["unreadable"]
        else:
            good[path] = known
    return good, bad


def _below(root: Path, path: Path) -> str:
    """A file's path below the folder that was given; its name where a file or a pattern was."""
    if not root.is_dir():
        return path.name
    return path.relative_to(root).as_posix()


def part_of(whole: Shelf, folder: Folder) -> Shelf:
    """The part of the files that the settings name. Raises Failure(65) where it is empty."""
    chosen = choose(len(whole.clips), folder, whole.keys)
    if len(chosen) == 0:
        cause = f"{folder.path}: none of {len(whole.clips)} files is in {folder.part}"
        raise Failure(Exit.BAD_DATA, cause, "look at part, split and key")
    clips = tuple(whole.clips[i] for i in chosen)
    marks = tuple(whole.marks[i] for i in chosen)
    return Shelf(clips, whole.keys[chosen], marks, whole.skipped)


def whole(clip: Clip, rate: int) -> np.ndarray:
    """All of a clip, mono, float64 [samples] at this rate."""
    return _resampled(_read(clip, 0, clip.frames), clip.rate, rate)


def segment(clip: Clip, rate: int, samples: int, place: float) -> np.ndarray:
    """`samples` of a clip at this rate, mono, float64, or all of it where it is shorter.

    `place` in [0, 1) says from where on: 0 is its beginning. Raises Failure(65) where the file has changed.
    """
    # Rounded up: fewer frames would give fewer samples. `place` is below 1, so the last start leaves as many.
    wanted = -(-samples * clip.rate // rate)
    start = int(place * (max(0, clip.frames - wanted) + 1))
    read = _read(clip, start, min(wanted + _MARGIN, clip.frames - start))
    return _resampled(read, clip.rate, rate)[:samples]


def _read(clip: Clip, start: int, frames: int) -> np.ndarray:
    """Frames of a file, float64 [frames], the mean of its channels."""
    with clip.seen.open() as raw:
        try:
            sound = _decoded(raw, clip.seen.path, start, frames)
        except (RuntimeError, ValueError, OSError) as error:
            raise _unreadable({clip.seen.path: str(error)}) from error
    if len(sound) < frames:
        raise _unreadable({clip.seen.path: f"it ends at frame {start + len(sound)} of {clip.frames}"})
    return sound.mean(axis=1)


def _decoded(raw: Any, path: str, start: int, frames: int) -> np.ndarray:
    """Frames [frames, channels], float64."""
    import soundfile

    if path.endswith(".npy"):
        return _array(raw)[start : start + frames]
    with soundfile.SoundFile(raw) as file:
        file.seek(start)
        return file.read(frames, dtype="float64", always_2d=True)


def _array(raw: Any) -> np.ndarray:
    """A numpy file's numbers as [samples, channels]. Raises ValueError where it holds something else."""
    array = np.lib.format.read_array(raw, allow_pickle=False)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise ValueError(
            f"an array of {array.dtype} {list(array.shape)} is no response [samples] or [channels, samples]"
        )
    return np.atleast_2d(array).T.astype(np.float64)


def _resampled(sound: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    import soxr

    if rate == wanted:
        return sound
    return soxr.resample(sound, rate, wanted)


def _examined(path: str, rate: int) -> str:
    """What is known of a file, as JSON: its digest, frames and rate (`rate` for arrays), or why it is unreadable."""
    try:
        frames, found = _counted(path, rate)
    except (RuntimeError, ValueError, OSError) as error:
        return json.dumps({"unreadable": str(error)})
    return json.dumps({"sha256": file_digest(path), "frames": frames, "rate": found})


def _counted(path: str, array_rate: int) -> tuple[int, int]:
    """Frames and rate of a file, decoded whole. Raises ValueError or RuntimeError where that does not go well."""
    import soundfile

    with open(path, "rb") as raw:
        if path.endswith(".npy"):
            return _sound_in([_array(raw)]), array_rate
        with soundfile.SoundFile(raw) as file:
            # libsndfile reads what is there of a wav that is cut off, and promises no more than that.
            cut = _CUT.search(file.extra_info)
            if cut and int(cut[2]) < int(cut[1]) < _UNKNOWN:
                raise ValueError(f"it is cut off: {cut[2]} of {cut[1]} bytes of sound are there")
            blocks = file.blocks(blocksize=_BLOCK, dtype="float64", always_2d=True)
            return _sound_in(blocks, file.frames), file.samplerate


def _sound_in(blocks: Iterable[np.ndarray], promised: int = 1) -> int:
    """How many frames there are. Raises ValueError where they are fewer than promised, or one is no number."""
    frames = 0
    for block in blocks:
        if not np.isfinite(block).all():
            raise ValueError(f"a sample between frames {frames} and {frames + len(block)} is not finite")
        frames += len(block)
    if not frames:
        raise ValueError("it holds no sound")
    if frames < promised:
        raise ValueError(f"it is cut off: {frames} of {promised} frames are there")
    return frames


def _deciding(folder: Folder, name: str) -> str:
    """What of a path decides its part."""
    if folder.key is None or folder.part == "all":
        return name
    found = re.search(folder.key, name)
    if found is None or found[1] is None:
        raise Failure(Exit.BAD_DATA, f"{folder.path}: key {folder.key!r} is not in {name!r}", "mend the key", file=name)
    return found[1]


def _unreadable(bad: Mapping[str, str]) -> Failure:
    """Failure(65) for files and why they cannot be read: it names the first, its details all of them."""
    lines = [f"{path}: {why}" for path, why in bad.items()]
    others = len(lines) - 1
    more = f", and {others} more" if others else ""
    failure = Failure(
        Exit.BAD_DATA, f"{lines[0]}{more}", "mend or remove it, or set unreadable: skip", file=next(iter(bad))
    )
    failure.details = "\n".join(lines) if more else ""
    return failure
