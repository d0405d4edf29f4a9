"""Commits beside the bare disk, torch.save and torch.load, what training stands still for one, and where time goes.

`python benchmarks/commit.py`. All ways run in each round, in turn forwards and backwards, and are compared within it.
The floor of a commit is a bare write of the same bytes to one file, its fsync, and a cold read, all in large pieces and
without a look at them. torch.save is followed by fsync of file and folder; torch.load checks no hash. Ours reads every
byte back from the disk before it counts, compares it, hashes it, and checks every byte when it is loaded. Cold means
that the kernel's copy was dropped before; the other loads find it in memory, torch's too. Each load is the first one of
a process of its own, as in a resume: where memory was used before, it costs less. Beside each time stands what the
processor worked for it: on a machine that others use, that says more.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from drivetrain.checkpoint.commit import StateTree, load
from drivetrain.checkpoint.commits import Commit, Committer
from drivetrain.checkpoint.files import chunks
from drivetrain.checkpoint.memory import checksum, room, same
from drivetrain.checkpoint.retention import Retention

LARGE = 8 << 20
"""Bytes that the floor reads at once."""
NAMES = (
    "floor",
    "torch_save",
    "blocking",
    "removing",
    "beside",
    "stands_still",
    "torch_load",
    "verified_load",
    "torch_load_cold",
    "verified_load_cold",
)
RATIOS = (
    ("blocking", "floor", "of the floor's time: blocking commit"),
    ("beside", "floor", "of the floor's time: commit beside training that rests"),
    ("stands_still", "blocking", "of a blocking commit is what training stands still for one beside it"),
    ("torch_save", "blocking", "of torch.save's speed: blocking commit"),
    ("torch_load", "verified_load", "of torch.load's speed: verified load"),
    ("torch_load_cold", "verified_load_cold", "of torch.load's speed: verified load, both cold"),
)


def state(megabytes: int) -> dict[str, torch.Tensor]:
    """Weights and two moments of a transformer's shapes."""
    width, tensors, size = 1024, {}, 0
    while size < megabytes * 1_000_000:
        for name, shape in (("attention", (width, width)), ("up", (width, 2 * width)), ("norm", (width,))):
            for slot in ("weight", "exp_avg", "exp_avg_sq"):
                tensor = torch.randn(shape)
                tensors[f"networks/model/{len(tensors)}.{name}.{slot}"] = tensor
                size += tensor.nbytes
    return tensors


def drop(path: Path) -> None:
    """The kernel's copy of a durable file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Ways:
    """Each of `NAMES` gives seconds."""

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        self.folder = folder
        self.tensors = tensors
        self.data = torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).numpy().view(np.uint8)
        self.committers = {name: self._committer(name) for name in ("blocking", "beside")}
        self.step = 0
        self.rotating = 0.0
        self.worked = 0.0  # by the processor, for a load
        self.committers["beside"].prepare(tensors)

    def floor(self) -> float:
        return sum(self.bare().values())

    def bare(self) -> dict[str, float]:
        """Seconds of each part of the floor."""
        path = self.folder / "bare"
        path.unlink(missing_ok=True)
        times = [time.perf_counter()]
        with path.open("xb", buffering=0) as file:
            view: memoryview = self.data.data
            while view:
                view = view[file.write(view) :]
            times.append(time.perf_counter())
            os.fsync(file.fileno())
            times.append(time.perf_counter())
        drop(path)
        with path.open("rb", buffering=0) as file:
            view = memoryview(bytearray(LARGE))
            while file.readinto(view):
                pass
        times.append(time.perf_counter())
        names = ("bare write", "bare fsync", "bare cold read")
        return {name: times[n + 1] - times[n] for n, name in enumerate(names)}

    def stands_still(self) -> float:
        """What training waits for a commit that is written beside it."""
        return self._commit("beside")[0]

    def beside(self) -> float:
        """Until the commit counts."""
        return sum(self._commit("beside")[:2])

    def blocking(self) -> float:
        """Until the commit counts."""
        still, writing, self.rotating = self._commit("blocking")
        return still + writing

    def removing(self) -> float:
        """What comes after the blocking commit of this round: the one before it is removed."""
        return self.rotating

    def torch_save(self) -> float:
        path = self.folder / "saved.pt"
        path.unlink(missing_ok=True)
        started = time.perf_counter()
        with path.open("wb") as file:
            torch.save(self.tensors, file)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return time.perf_counter() - started

    def verified_load(self) -> float:
        return self._loaded("verified", self._newest())

    def verified_load_cold(self) -> float:
        for file in self._newest().iterdir():
            drop(file)
        return self.verified_load()

    def torch_load(self) -> float:
        return self._loaded("torch", self.folder / "saved.pt")

    def torch_load_cold(self) -> float:
        drop(self.folder / "saved.pt")
        return self.torch_load()

    def _loaded(self, how: str, path: Path) -> float:
        command = [sys.executable, __file__, "--load", how, str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds, self.worked = map(float, done.stdout.split())
        return seconds

    def _newest(self) -> Path:
        return max((self.folder / "blocking" / "checkpoints").glob("step-*"))

    def _commit(self, name: str) -> tuple[float, float, float]:
        """Seconds in which training stands still even beside it, until it counts, and until all is done."""
        self.step += 1
        started = time.perf_counter()
        self.committers[name].begin(self.step, StateTree(self.tensors, {}), {})
        begun = time.perf_counter()
        result = self.committers[name].wait()
        assert result is not None
        assert isinstance(result, Commit), result
        return begun - started, result.writing, time.perf_counter() - begun - result.writing

    def _committer(self, name: str) -> Committer:
        (self.folder / name).mkdir()
        return Committer(self.folder / name, None, Retention(1), blocking=name == "blocking")


def loaded(how: str, path: Path) -> None:
    """Say how many seconds a load takes in this process, and how many the processor works."""
    before = time.process_time()
    if how == "torch":
        seconds = timed(lambda: torch.load(path, weights_only=True))
    else:
        seconds = timed(lambda: load(path))
    print(seconds, time.process_time() - before)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def pieces(ways: Ways) -> dict[str, float]:
    """Seconds of each thing that a commit or a load does, alone and on one thread, on all bytes."""

    def compare() -> None:
        assert all(same(one, other) for one, other in zip(chunks([ways.data]), chunks([copy]), strict=True))

    def read() -> None:
        with (ways.folder / "bare").open("rb", buffering=0) as file:
            file.readinto(room(len(ways.data)))

    copy, found = ways.data.copy(), ways.bare()
    found["checksum"] = timed(lambda: [checksum(part) for part in chunks([ways.data])])
    found["SHA-256"] = timed(lambda: hashlib.sha256(ways.data.data))
    found["comparison"] = timed(compare)
    found["warm read into new memory"] = timed(read)
    return found


def shown(name: str, seconds: Iterable[float], worked: Iterable[float] = ()) -> None:
    times, work = sorted(seconds), list(worked)
    line = f"{name:<26} {statistics.median(times):.3f} s ({times[0]:.3f} to {times[-1]:.3f})"
    print(line + (f", processor {statistics.median(work):.3f} s ({min(work):.3f} to {max(work):.3f})" if work else ""))


Figures = dict[str, list[float]]


def rounds(ways: Ways, count: int) -> tuple[Figures, Figures, Figures]:
    """Seconds of all ways, the processor's for them, and seconds of `pieces`; the first figure of each warms up."""
    taken: Figures = {name: [] for name in NAMES}
    worked: Figures = {name: [] for name in NAMES}
    apart: Figures = {}
    for number in range(count + 1):
        for name in NAMES if number % 2 == 0 else NAMES[::-1]:
            before, ways.worked = time.process_time(), 0.0
            taken[name].append(getattr(ways, name)())
            worked[name].append(ways.worked or time.process_time() - before)
        for name, seconds in pieces(ways).items():
            apart.setdefault(name, []).append(seconds)
    return taken, worked, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk that is meant; by default a temporary one")
    parser.add_argument("--load", nargs=2, metavar=("HOW", "PATH"), help="only a load, `verified` or `torch`")
    asked = parser.parse_args()
    if asked.load:
        loaded(asked.load[0], Path(asked.load[1]))
        return
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        ways = Ways(folder, state(asked.megabytes))
        taken, worked, apart = rounds(ways, asked.rounds)
        for name in NAMES:
            shown(name, taken[name][1:], worked[name][1:])
        for one, other, words in RATIOS:
            ratios = sorted(a / b for a, b in zip(taken[one][1:], taken[other][1:], strict=True))
            print(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) {words}")
        print("what a commit or a load is made of, each alone on one thread:")
        for name, seconds in apart.items():
            shown(name, seconds[1:])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
