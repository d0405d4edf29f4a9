"""Token batches beside bare gathers of the same rows, and memory. `python benchmarks/data.py`.

Each baseline makes the same int64 tensors of the same rows from a memory map. `rows given` is the fastest that numpy
has and is told which rows; `rows shuffled` also computes which rows, by our order; `slices` stacks them one by one, as
plain training scripts do. All maps are warm: each way has read all its rows before it is timed.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH, ROWS = 64, 1 << 16  # samples a step, samples that are timed
CONTEXTS = (512, 2048)


def write(path: Path, megabytes: int) -> None:
    """A token file of that size, uint16."""
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            generator.integers(0, 50_000, 1 << 19, dtype=np.uint16).tofile(file)


def ways(path: Path, context: int) -> dict[str, Callable[[], None]]:
    """Ours and the baselines, each a function that makes all batches once."""
    import torch

    from drivetrain.data.feed import Feed
    from drivetrain.data.geometry import Geometry
    from drivetrain.data.order import Order
    from drivetrain.data.prefetch import prefetch
    from drivetrain.data.recipe import Tokens
    from drivetrain.data.tokens import open_tokens

    steps = ROWS // BATCH
    source = open_tokens(Tokens(path=str(path), context=context), path.with_suffix(".json"))
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    view = np.lib.stride_tricks.as_strided(tokens, (len(source), context + 1), (2 * context, 2), writeable=False)
    order = Order(len(source), 0, True)
    given = [order.ids(step * BATCH, (step + 1) * BATCH).copy() for step in range(steps)]

    def collate(rows):
        windows = torch.from_numpy(rows.astype(np.int64))
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}

    def ours() -> None:
        order = Order(len(source), 0, True)
        feed = Feed(
            source, order, Geometry(BATCH, 8, 1, BATCH), 0, ROWS, collate, lambda b: {"tokens": b["targets"].numel()}
        )
        shares = prefetch(feed, 1, steps, 8, 0)
        assert sum(1 for _ in shares) == steps
        shares.close()

    def rows_given() -> None:
        for ids in given:
            collate(view[ids])

    def rows_shuffled() -> None:
        order = Order(len(source), 0, True)
        for step in range(steps):
            collate(view[order.ids(step * BATCH, (step + 1) * BATCH)])

    def slices() -> None:
        for ids in given[: steps // 8]:  # an eighth: it is slow
            starts = (ids * context).tolist()
            torch.stack([torch.from_numpy(tokens[at : at + context].astype(np.int64)) for at in starts])
            torch.stack([torch.from_numpy(tokens[at + 1 : at + 1 + context].astype(np.int64)) for at in starts])

    return {"ours": ours, "rows given": rows_given, "rows shuffled": rows_shuffled, "slices": slices}


def seconds(way: Callable[[], None]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def compare(path: Path, context: int, rounds: int) -> None:
    """Print the ratios. All ways run in each round, in turn forwards and backwards, and are compared within it."""
    chosen = ways(path, context)
    for way in chosen.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(rounds):
        for name in sorted(chosen, reverse=number % 2 == 1):
            taken[name].append(seconds(chosen[name]) * (8 if name == "slices" else 1))
    ours = taken.pop("ours")
    rate = ROWS * context / statistics.median(ours) / 1e6
    print(f"  context {context}: {statistics.median(ours) * BATCH / ROWS * 1e6:.0f} us a batch, {rate:.0f} M tokens/s")
    for name, baseline in taken.items():
        ratios = sorted(theirs / mine for theirs, mine in zip(baseline, ours, strict=True))
        low, middle, high = (ratios[len(ratios) * k // 10] for k in (1, 5, 9))
        print(f"    {middle:5.2f} of the rate of {name} (80% of rounds within {low:.2f} to {high:.2f})", flush=True)


def memory(path: Path) -> str:
    """Megabytes of a process that has read batches all over the file: its own, and mapped from files."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nimport data\n"
        f"data.ways(Path({str(path)!r}), {CONTEXTS[0]})['ours']()\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(*(int(status.partition(f'{name}:')[2].split()[0]) // 1024 for name in ('RssAnon', 'RssFile', 'VmRSS')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, mapped, resident = done.stdout.split()
    return f"{own} MB its own + {mapped} MB mapped from files (page cache) = {resident} MB resident"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (10, 2000):
            path = Path(folder) / f"{megabytes}.bin"
            write(path, megabytes)
            print(f"{megabytes} MB of tokens: {memory(path)}", flush=True)
            for context in CONTEXTS:
                compare(path, context, asked.rounds)
            path.unlink()


if __name__ == "__main__":
    main()
