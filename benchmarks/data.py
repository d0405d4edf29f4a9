"""Token batches beside a bare memmap gather of the same rows, and resident memory. `python benchmarks/data.py`."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CONTEXT, BATCH, STEPS = 512, 64, 200


def write(path: Path, megabytes: int) -> None:
    """A token file of that size, uint16."""
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            generator.integers(0, 50_000, 1 << 19, dtype=np.uint16).tofile(file)


def shares(path: Path):
    """What a run reads: shares with int64 tensors, from a shuffled order."""
    import torch

    from drivetrain.data.feed import Feed
    from drivetrain.data.geometry import Geometry
    from drivetrain.data.order import Order
    from drivetrain.data.prefetch import prefetch
    from drivetrain.data.recipe import Tokens
    from drivetrain.data.tokens import open_tokens

    source = open_tokens(Tokens(path=str(path), context=CONTEXT), path.with_suffix(".json"))
    order = Order(len(source), 0, True)

    def collate(rows):
        windows = torch.from_numpy(rows.astype(np.int64))
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}

    feed = Feed(
        source, order, Geometry(BATCH, 8, 1, BATCH), 0, 10**12, collate, lambda b: {"tokens": b["targets"].numel()}
    )
    return order, prefetch(feed, 1, STEPS, 8, 0)


def bare(path: Path, order) -> float:
    """Seconds for a plain gather of the same rows, made into the same tensors, in the fastest way that numpy has."""
    import torch

    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    count = (len(tokens) - 1) // CONTEXT
    view = np.lib.stride_tricks.as_strided(tokens, (count, CONTEXT + 1), (2 * CONTEXT, 2), writeable=False)
    started = time.perf_counter()
    for step in range(STEPS):
        ids = order.ids(step * BATCH, (step + 1) * BATCH)
        windows = torch.from_numpy(view[ids].astype(np.int64))
        _ = windows[:, :-1], windows[:, 1:]
    return time.perf_counter() - started


def ours(path: Path) -> tuple[float, object]:
    """Seconds for the same by way of the loader."""
    order, feed = shares(path)
    started = time.perf_counter()
    for _ in feed:
        pass
    taken = time.perf_counter() - started
    feed.close()
    return taken, order


def resident(path: Path) -> str:
    """Private resident megabytes of a process that reads batches all over the file."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nimport data\n"
        f"data.ours(Path({str(path)!r}))\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(int(status.partition('RssAnon:')[2].split()[0]) // 1024)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (10, 2000):
            path = Path(folder) / f"{megabytes}.bin"
            write(path, megabytes)
            _, order = ours(path)
            bare(path, order)
            ratios = [bare(path, order) / ours(path)[0] for _ in range(asked.pairs)]
            rate = STEPS * BATCH * CONTEXT / ours(path)[0] / 1e6
            print(
                f"{megabytes} MB: {statistics.median(ratios):.2f} of the bare gather's rate "
                f"({min(ratios):.2f} to {max(ratios):.2f}), {rate:.0f} M tokens/s, {resident(path)} MB resident",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main()
