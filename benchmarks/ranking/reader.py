"""Rows of columns to ready tensors, beside pyarrow's bare scan. `python benchmarks/ranking/reader.py [--rows N]`.

A generated log (a label, 13 numbers with nulls, 26 columns of skewed strings) lies as Parquet (zstd, row groups of
65,536 rows) and as CSV. `scan` is pyarrow's own, `dataset.to_batches` on all cores, and makes no tensor of it. Ours
hashes the strings, and gives 40 tensors a batch, in the files' order and shuffled, as one process of a run reads them.
`DataLoader` is torch's over pyarrow batches with the same hash, in the files' order, with 0 and 2 workers. All ways are
timed in turn, round after round, each with a source of its own: ratios are of the same round. The work of all threads
is what counts on a machine that does other things, too (a `DataLoader`'s workers are not in it).

Memory is what a process that only reads has at most, shuffled: at its first start, which decodes all for the index, and
later. `--memory 1 5 20` tells only that, for so many million rows, with 512 MiB of kept blocks and with none.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import torch
from pyarrow import csv, parquet
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import training_order
from drivetrain.data.column_files import open_columns
from drivetrain.data.columns import Columns
from drivetrain.data.geometry import Geometry
from drivetrain.data.hashing import hash_strings, rows_of
from drivetrain.data.recipe import ColumnFiles, Train
from drivetrain.runtime.memory import keep_freed
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

NUMBERS = ["label", *(f"number{k}" for k in range(13))]
WORDS = [f"word{k}" for k in range(26)]
GROUP, BATCH, TABLE = 1 << 16, 8192, 100_000
LANES = 8
FILES = ("log.parquet", "log.csv")


def write(folder: Path, rows: int) -> None:
    """The log, a row group at a time."""
    generator = np.random.default_rng(0)
    counts = np.geomspace(5, 300_000, len(WORDS)).astype(int)
    words = []
    for k, count in enumerate(counts.tolist()):
        words.append(pa.array([f"{(value * 2654435761 + k) & 0xFFFFFFFF:08x}" for value in range(count)]))
    schema = pa.schema([(name, pa.float32()) for name in NUMBERS] + [(name, pa.string()) for name in WORDS])
    plain = csv.WriteOptions(quoting_style="none")
    with (
        parquet.ParquetWriter(folder / "log.parquet", schema, compression="zstd") as grouped,
        csv.CSVWriter(folder / "log.csv", schema, write_options=plain) as lines,
    ):
        for first in range(0, rows, GROUP):
            n = min(GROUP, rows - first)
            columns = [pa.array((generator.random(n) < 0.25).astype(np.float32))]
            for _ in NUMBERS[1:]:
                values = generator.exponential(50, n).astype(np.float32).round()
                columns.append(pa.array(values, mask=generator.random(n) < 0.2))
            for count, own in zip(counts.tolist(), words, strict=True):
                columns.append(own.take(pa.array((generator.pareto(0.9, n) * 3).astype(np.int64) % count)))
            table = pa.table(columns, schema=schema)
            grouped.write_table(table, row_group_size=GROUP)
            lines.write_table(table)


class Hashed:
    """The encoder: numbers as float32 with 0 for a null, strings as rows of a table."""

    columns = dict.fromkeys(NUMBERS, "number") | dict.fromkeys(WORDS, "string")
    digest = "benchmark"

    def encode(self, table: pa.Table) -> dict[str, np.ndarray]:
        found = {}
        for name in NUMBERS:
            values = table.column(name).chunk(0)
            found[name] = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.float32)
        for seed, name in enumerate(WORDS):
            found[name] = rows_for(table.column(name).chunk(0), seed)
        return found


def rows_for(strings: pa.Array, seed: int) -> np.ndarray:
    """The row of each string, int64."""
    if not pa.types.is_dictionary(strings.type):
        return rows_of(hash_strings(strings, seed), TABLE)
    return rows_of(hash_strings(strings.dictionary, seed), TABLE)[strings.indices.to_numpy(zero_copy_only=False)]


def tensors(samples: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in samples.arrays.items()}


def scan(path: Path) -> Iterator[int]:
    for batch in ds.dataset(path, format=path.suffix[1:]).to_batches(batch_size=BATCH):
        yield batch.num_rows


def ours(path: Path, shuffle: bool, kept: int = 512) -> Iterator[int]:
    source = open_columns(ColumnFiles(path=str(path), kept=kept), path.with_suffix(".json")).encoded(Hashed())
    batches = Batches(BATCH)
    source, order = training_order(Train(sources=({},), shuffle=shuffle), {"log": source}, 0, Scale(batches), LANES)
    reader = BatchReader(source, order, Geometry(batches, LANES, 1, None), 0, order.size, tensors, lambda batch: {})
    for step in range(1, batches.steps(order.size) + 1):
        (micro,) = reader.read(step).micro_batches
        yield len(micro.batch["label"])


class Loaded(IterableDataset):
    """What a plain training script makes of pyarrow's batches."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        dataset = ds.dataset(self.path, format=self.path.suffix[1:])
        fragments = list(dataset.get_fragments())
        if self.path.suffix == ".parquet":
            fragments = [group for fragment in fragments for group in fragment.split_by_row_group()]
        for fragment in fragments[number::workers]:
            for batch in fragment.to_batches(batch_size=BATCH, schema=dataset.schema):
                yield tensors(Columns({**Hashed().encode(pa.Table.from_batches([batch.cast(TYPES)])), "row": NONE}))


TYPES = pa.schema([(name, pa.float64()) for name in NUMBERS] + [(name, pa.string()) for name in WORDS])
NONE = np.zeros(0, np.int64)


def loaded(path: Path, workers: int) -> Iterator[int]:
    for batch in DataLoader(Loaded(path), batch_size=None, num_workers=workers):
        yield len(batch["label"])


def ways(path: Path) -> dict[str, Callable[[], Iterator[int]]]:
    return {
        "scan": lambda: scan(path),
        "in order": lambda: ours(path, False),
        "shuffled": lambda: ours(path, True),
        "DataLoader, 0": lambda: loaded(path, 0),
        "DataLoader, 2": lambda: loaded(path, 2),
    }


def timed(way: Callable[[], Iterator[int]], rows: int) -> tuple[float, float]:
    """Seconds of the clock, and of this process on all cores."""
    started, worked = time.perf_counter(), time.process_time()
    assert sum(way()) == rows
    return time.perf_counter() - started, time.process_time() - worked


def compare(path: Path, rows: int, rounds: int) -> None:
    """Print the seconds of each way, and the share of the scan's speed."""
    started = time.perf_counter()
    open_columns(ColumnFiles(path=str(path)), path.with_suffix(".json"))
    print(f"\n{path.name}: {path.stat().st_size / 1e6:.0f} MB; first start {time.perf_counter() - started:.2f} s")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways(path)}
    for _ in range(rounds):
        for name, way in ways(path).items():
            seconds[name].append(timed(way, rows))
    for name, own in seconds.items():
        ratios = [100 * base / each for (base, _), (each, _) in zip(seconds["scan"], own, strict=True)]
        clock, work = (statistics.median(each) for each in zip(*own, strict=True))
        spread = f"{statistics.median(ratios):4.0f} % of the scan ({min(ratios):.0f} to {max(ratios):.0f})"
        print(f"{name:14} {clock:6.2f} s  {spread}; {work:.2f} s of this process's work")


def peak() -> float:
    """Megabytes that this process has had at most."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def only_read(path: Path, kept: int) -> None:
    """Read everything once, and tell what that took."""
    keep_freed()
    before, known = peak(), path.with_suffix(".json").exists()
    open_columns(ColumnFiles(path=str(path)), path.with_suffix(".json"))
    started = "later start" if known else "first start"
    print(f"before {before:.0f} MB, {started} {peak():.0f} MB, ", end="")
    rows = sum(ours(path, True, kept))
    size = path.with_suffix(".json").stat().st_size
    print(f"{rows:,} rows read {peak():.0f} MB; index {size / 1e3:.0f} kB")


def memory(path: Path, *kept: int) -> None:
    """What a process has at most that reads everything once."""
    for each in kept:
        command = [sys.executable, __file__, "--only-read", str(path), str(each)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        print(f"memory, {path.name}, kept {each} MiB: {told}", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--rows", type=int, default=1_000_000)
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument(
        "--memory", type=int, nargs="+", metavar="MILLIONS", help="of rows: only what it takes of memory"
    )
    asked.add_argument("--only-read", nargs=2, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.only_read:
        only_read(Path(given.only_read[0]), int(given.only_read[1]))
        return
    for millions in given.memory or ():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), millions * 1_000_000)
            for name in FILES:
                memory(Path(folder, name), 512, 0)
    if given.memory:
        return
    keep_freed()  # as every training process does
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows)
        for name in FILES:
            compare(Path(folder, name), given.rows, given.rounds)
            memory(Path(folder, name), 512)


if __name__ == "__main__":
    main()
