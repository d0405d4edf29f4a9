"""Commits beside torch.save and torch.load of the same tensors, and how long training stands still for one.

`python benchmarks/commit.py`. All ways run in each round, in turn forwards and backwards, and are compared within it.
torch.save is followed by fsync of file and folder; torch.load checks no hash. Ours hashes every byte, reads it back
from the disk before it counts, and checks every byte when it is loaded.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from drivetrain.checkpoint.commit import StateTree, load
from drivetrain.checkpoint.commits import Committer
from drivetrain.checkpoint.retention import Retention


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


class Ways:
    """Each method gives seconds."""

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        self.folder = folder
        self.tensors = tensors
        self.beside = self._committer("beside", blocking=False)
        self.waiting = self._committer("waiting", blocking=True)
        self.step = 0
        self.beside.prepare(tensors)

    def stands_still(self) -> float:
        """What training waits for a commit that is written beside it."""
        return self._commit(self.beside)[0]

    def blocking(self) -> float:
        return sum(self._commit(self.waiting))

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
        path = max((self.folder / "waiting" / "checkpoints").glob("step-*"))
        started = time.perf_counter()
        load(path)
        return time.perf_counter() - started

    def torch_load(self) -> float:
        started = time.perf_counter()
        torch.load(self.folder / "saved.pt", weights_only=True)
        return time.perf_counter() - started

    def _commit(self, committer: Committer) -> tuple[float, float]:
        self.step += 1
        started = time.perf_counter()
        committer.begin(self.step, StateTree(self.tensors, {}), {})
        begun = time.perf_counter()
        result = committer.wait()
        assert result is not None
        assert hasattr(result, "manifest"), result
        return begun - started, time.perf_counter() - begun

    def _committer(self, name: str, *, blocking: bool) -> Committer:
        (self.folder / name).mkdir()
        return Committer(self.folder / name, None, Retention(1), blocking=blocking)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk that is meant; by default a temporary one")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        ways = Ways(folder, state(asked.megabytes))
        names = ("torch_save", "blocking", "stands_still", "torch_load", "verified_load")
        taken: dict[str, list[float]] = {name: [] for name in names}
        for number in range(asked.rounds + 1):  # the first one warms up
            for name in names if number % 2 or number == 0 else names[::-1]:
                taken[name].append(getattr(ways, name)())
        for name in names:
            taken[name] = taken[name][1:]
            print(
                f"{name:<14} {statistics.median(taken[name]):.3f} s ({min(taken[name]):.3f} to {max(taken[name]):.3f})"
            )
        for one, other, words in (
            ("stands_still", "blocking", "of a blocking commit is what training stands still for one beside it"),
            ("torch_save", "blocking", "of torch.save's speed: blocking commit"),
            ("torch_load", "verified_load", "of torch.load's speed: verified load"),
        ):
            ratios = sorted(a / b for a, b in zip(taken[one], taken[other], strict=True))
            print(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) {words}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
