"""Token batches and blended, packed batches beside bare gathers, and memory. `python benchmarks/data.py`.

Each baseline makes the same int64 tensors of the same rows from a memory map. `gather` is numpy's own, the map indexed
by the place of every token. `rows given` is the fastest that numpy has, copies of rows of a strided view, and is told
which rows; `rows shuffled` also computes which rows, by our order; `slices` stacks them one by one, as plain training
scripts do. All maps are warm: each way has read all its rows before it is timed.

Packed batches are of three files of documents (about 700 tokens each), blended 3 : 2 : 1; their baseline gathers as
many tokens from one file of the same size as the three together, and knows no documents. `kept` keeps eight batches
alive, as whatever reads ahead does: a loop that throws each away at once finds the same warm memory again.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from drivetrain.runtime.memory import keep_freed

BATCH, ROWS = 64, 1 << 16  # samples a step, samples that are timed
CONTEXTS = (512, 2048)
PACKED_CONTEXTS = (512, 2048, 8192)


def write(path: Path, megabytes: int) -> None:
    """A token file of that size, uint16."""
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            generator.integers(0, 50_000, 1 << 19, dtype=np.uint16).tofile(file)


def ways(path: Path, context: int) -> dict[str, Callable[[], None]]:
    """Ours and the baselines, each a function that makes all batches once."""
    import torch

    from drivetrain.data.batch_reader import BatchReader
    from drivetrain.data.geometry import Geometry
    from drivetrain.data.order import Order
    from drivetrain.data.prefetch import prefetch
    from drivetrain.data.recipe import Tokens
    from drivetrain.data.tokens import open_tokens
    from drivetrain.spec.batches import Batches

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
        feed = BatchReader(
            source,
            order,
            Geometry(Batches(BATCH), 8, 1, BATCH),
            0,
            ROWS,
            collate,
            lambda b: {"tokens": b["targets"].numel()},
        )
        shares = prefetch(feed, 1, steps, 8, 0)
        assert sum(1 for _ in shares) == steps
        shares.close()

    def rows_given() -> None:
        for ids in given:
            collate(view[ids])

    def gather() -> None:
        every = np.arange(context + 1)
        for ids in given:
            collate(tokens[(ids * context)[:, None] + every])

    def rows_shuffled() -> None:
        order = Order(len(source), 0, True)
        for step in range(steps):
            collate(view[order.ids(step * BATCH, (step + 1) * BATCH)])

    def slices() -> None:
        for ids in given[: steps // 8]:  # an eighth: it is slow
            starts = (ids * context).tolist()
            torch.stack([torch.from_numpy(tokens[at : at + context].astype(np.int64)) for at in starts])
            torch.stack([torch.from_numpy(tokens[at + 1 : at + 1 + context].astype(np.int64)) for at in starts])

    return {
        "ours": ours,
        "gather": gather,
        "rows given": rows_given,
        "rows shuffled": rows_shuffled,
        "slices": slices,
    }


def packed_ways(folder: Path, megabytes: int, context: int, part: str) -> dict[str, Callable[[], None]]:
    """Blended, packed batches and the baseline, each a function that makes all batches once."""
    import torch

    from drivetrain.data.batch_reader import BatchReader
    from drivetrain.data.blend import training_order
    from drivetrain.data.geometry import Geometry
    from drivetrain.data.packing import open_documents
    from drivetrain.data.prefetch import prefetch
    from drivetrain.data.recipe import Documents, Train
    from drivetrain.data.stacked import stacked
    from drivetrain.spec.amount import Scale
    from drivetrain.spec.batches import Batches

    settings = [
        Documents(path=str(documents(folder / f"{n}", megabytes // 3, n)), context=context, part=part, weight=3 - n)
        for n in range(3)
    ]
    sources = [open_documents(one, folder / "cache.json") for one in settings]
    whole = folder / "whole.bin"
    if not whole.is_file():
        write(whole, megabytes)
    tokens = np.memmap(whole, dtype=np.uint16, mode="r")
    count = (len(tokens) - 1) // context
    view = np.lib.stride_tricks.as_strided(tokens, (count, context + 1), (2 * context, 2), writeable=False)
    steps, names = ROWS * CONTEXTS[0] // context // BATCH, ["a", "b", "c"]
    total, generator = steps * BATCH, np.random.default_rng(1)
    given = [generator.integers(0, count, BATCH) for _ in range(steps)]

    def collate(samples):
        return {name: torch.from_numpy(stacked(samples, name)) for name in ("tokens", "targets")}

    def ours() -> None:
        scale = Scale(Batches(BATCH), context, sum(map(len, sources)))
        source, order = training_order(Train(sources=tuple(settings)), names, sources, 0, scale)
        geometry = Geometry(Batches(BATCH), 8, 1, BATCH)
        feed = BatchReader(source, order, geometry, 0, total, collate, lambda b: {"tokens": b["targets"].numel()})
        shares = prefetch(feed, 1, steps, 8, 0)
        assert sum(1 for _ in shares) == steps
        shares.close()

    def bare(read: Callable[[np.ndarray], np.ndarray], kept: int = 1) -> None:
        ahead = deque(maxlen=kept)
        for ids in given:
            windows = torch.from_numpy(read(ids).astype(np.int64))
            ahead.append({"tokens": windows[:, :-1], "targets": windows[:, 1:]})

    every = np.arange(context + 1)
    return {
        "ours": ours,
        "gather": partial(bare, lambda ids: tokens[(ids * context)[:, None] + every]),
        "rows given": partial(bare, view.__getitem__),
        "rows given, kept": partial(bare, view.__getitem__, 8),
    }


def documents(name: Path, megabytes: int, seed: int) -> Path:
    """A token file with Megatron's index, of documents whose lengths vary as those of texts do; its index's path."""
    from drivetrain.data.indexed import write_megatron

    index = name.with_suffix(".idx")
    if not index.is_file():
        write(name.with_suffix(".bin"), megabytes)
        left = name.with_suffix(".bin").stat().st_size // 2
        lengths = np.random.default_rng(seed).lognormal(6, 1, left // 500).astype(np.int64) + 1
        ends = np.cumsum(lengths)
        kept = lengths[: np.searchsorted(ends, left)]
        np.append(kept, left - kept.sum()).astype("<i8").tofile(name.with_suffix(".lengths"))
        with index.open("wb") as file:
            write_megatron(name.with_suffix(".lengths"), "uint16", file)
    return index


def seconds(way: Callable[[], None]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def compare(chosen: dict[str, Callable[[], None]], what: str, tokens: int, rounds: int) -> None:
    """Print the ratios. All ways run in each round, in turn forwards and backwards, and are compared within it."""
    for way in chosen.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(rounds):
        for name in sorted(chosen, reverse=number % 2 == 1):
            taken[name].append(seconds(chosen[name]) * (8 if name == "slices" else 1))
    ours = taken.pop("ours")
    rate = tokens / statistics.median(ours) / 1e6
    print(f"  {what}: {rate:.0f} M tokens/s")
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
    keep_freed()  # as in a run
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (10, 2000):
            path = Path(folder) / f"{megabytes}.bin"
            write(path, megabytes)
            print(f"{megabytes} MB of tokens: {memory(path)}", flush=True)
            for context in CONTEXTS:
                compare(ways(path, context), f"context {context}", ROWS * context, asked.rounds)
            path.unlink()
        print("blended, packed documents", flush=True)
        for context in PACKED_CONTEXTS:
            for part in ("all", "train"):
                chosen = packed_ways(Path(folder), 300, context, part)
                what = f"context {context}, part {part}, {BATCH} samples a batch"
                compare(chosen, what, ROWS * CONTEXTS[0], asked.rounds)


if __name__ == "__main__":
    main()
