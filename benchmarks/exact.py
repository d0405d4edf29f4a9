"""What exact mode costs: a step beside torch's DDP and beside our default mode, in turn. `python benchmarks/exact.py`.

All train the same small language model from the same token file on gloo, one thread a process. Exact mode takes a
forward pass for each lane, so DDP and the default mode are also timed with as many micro-batches: what is left of the
difference is the tree of sums. Where the time goes: the seconds of each phase on the first rank, as telemetry has them.

The default takes about four minutes on two cores; `--rounds 7 --steps 200` gives steadier figures in half an hour.
"""

import argparse
import contextlib
import os
import socket
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

import drivetrain
from drivetrain.ledger.ledger import read
from drivetrain.tasks.language_model.llama import Llama
from drivetrain.tasks.language_model.recipe import Llama as Settings

CONTEXT, VOCABULARY, BATCH, LR = 64, 256, 16, 1e-3
SKIPPED = 10
"""Steps at the start that are not counted."""
PHASES = ("forward", "backward", "reduce", "optimizer", "pulse")


def ddp_rank(rank: int, world: int, port: int, path: str, asked: argparse.Namespace, micro: int, out: str) -> None:
    """One rank of the loop that one writes by hand; it accumulates `micro` samples at a time."""
    import time

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Llama(Settings(**model_of(asked))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    count = (len(tokens) - 1) // CONTEXT
    rows = np.lib.stride_tricks.as_strided(tokens, (count, CONTEXT + 1), (2 * CONTEXT, 2))
    order = np.random.default_rng(0).permutation(count)
    share, ends = BATCH // world, []
    for step in range(asked.steps):
        start = (step * BATCH + rank * share) % (count - BATCH)
        windows = torch.from_numpy(rows[order[start : start + share]].astype(np.int64))
        optimizer.zero_grad()
        parts = windows.split(micro)
        for part in parts:
            with contextlib.nullcontext() if part is parts[-1] else model.no_sync():
                logits = model(part[:, :-1])
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
                (loss / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        ends.append(time.perf_counter())
    if rank == 0:
        np.save(out, np.array(ends))
    dist.destroy_process_group()


def ddp(path: Path, world: int, asked: argparse.Namespace, micro: int) -> float:
    """Median seconds a step."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        out = f"{folder}/ends.npy"
        torch.multiprocessing.spawn(ddp_rank, (world, port, str(path), asked, micro, out), nprocs=world)
        return float(np.median(np.diff(np.load(out)[SKIPPED:])))


def ours(
    path: Path, world: int, asked: argparse.Namespace, micro: int, *, exact: bool, phases: dict[str, list[float]]
) -> float:
    """Median seconds a step; the mean seconds of each phase are added to `phases`."""
    recipe = {
        "name": "exact",
        "exact": exact,
        "task": {"kind": "language_model", "model": model_of(asked) | {"vocabulary": VOCABULARY}},
        "data": {"train": {"sources": [{"kind": "tokens", "path": str(path)}]}},
        "lanes": asked.lanes,
        "batch": {"size": BATCH, "micro": micro},
        "budget": {"steps": asked.steps},
        "optimizer": {"lr": LR, "weight_decay": 0.0, "clip": 1.0},
        "schedule": {"kind": "constant"},
        "telemetry": {"every": {"steps": SKIPPED}},
        "launch": {"processes": world, "threads": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        records = list(read(drivetrain.train(recipe, run=folder, progress=False).run / "ledger.jsonl"))
    told = [record for record in records if record.kind == "telemetry" and record.step > SKIPPED]
    for phase in PHASES:
        spent = sum(record.phases.get(phase, 0.0) for record in told)
        phases.setdefault(phase, []).append(spent / sum(record.steps for record in told))
    return float(np.median([record.seconds for record in records if record.kind == "step"][SKIPPED:]))


def model_of(asked: argparse.Namespace) -> dict:
    """The model's settings."""
    return {"width": asked.width, "depth": asked.depth, "heads": 4, "context": CONTEXT}


def compare(path: Path, world: int, asked: argparse.Namespace) -> None:
    """Print a line for each mode: its time, and its ratios to the modes that it is measured by, with their spread."""
    share, lane = BATCH // world, BATCH // asked.lanes
    phases: dict[str, dict[str, list[float]]] = defaultdict(dict)
    modes = {
        "ddp": lambda: ddp(path, world, asked, share),
        "ddp, lane by lane": lambda: ddp(path, world, asked, lane),
        "default": lambda: ours(path, world, asked, share, exact=False, phases=phases["default"]),
        "default, lane by lane": lambda: ours(path, world, asked, lane, exact=False, phases=phases["lane by lane"]),
        "exact": lambda: ours(path, world, asked, lane, exact=True, phases=phases["exact"]),
    }
    taken: dict[str, list[float]] = {name: [] for name in modes}
    for number in range(asked.rounds):
        for name in list(modes) if number % 2 == 0 else list(modes)[::-1]:
            taken[name].append(modes[name]())
    print(f"{world} processes, {asked.lanes} lanes, {asked.steps - SKIPPED} steps, {asked.rounds} rounds:")
    for name, own in taken.items():
        print(f"  {name:22} {1e3 * statistics.median(own):8.2f} ms", end="")
        if name == "exact":
            for other in list(modes)[:-1]:
                ratios = [mine / theirs for mine, theirs in zip(own, taken[other], strict=True)]
                print(f"; {other}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", end="")
        print()
    for name, spent in phases.items():
        shown = ", ".join(f"{phase} {1e3 * statistics.median(spent[phase]):.2f}" for phase in PHASES)
        print(f"  ms in {name}: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help=f"more than {SKIPPED}, which are not counted")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    asked = parser.parse_args()
    if asked.steps < SKIPPED + 2:
        parser.error(f"--steps {asked.steps}: the first {SKIPPED} are not counted, so give {SKIPPED + 2} or more")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, VOCABULARY, 1_000_000, dtype=np.uint16).tofile(path)
        for world in asked.worlds:
            compare(path, world, asked)


if __name__ == "__main__":
    main()
