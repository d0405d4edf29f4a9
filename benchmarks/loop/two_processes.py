"""Two processes: our loop beside a bare loop with torch's DDP, in turn. `python benchmarks/loop/two_processes.py`.

Both train the same small language model from the same token file on gloo, one thread a process.
"""

import argparse
import os
import socket
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from task import CLIP, LR, WARMUP, factor

import drivetrain
from drivetrain.ledger.ledger import read
from drivetrain.tasks.language_model.llama import Llama
from drivetrain.tasks.language_model.recipe import Llama as Settings

MODEL = {"width": 64, "depth": 2, "heads": 4, "context": 64}
BATCH, SKIPPED = 16, 50


def bare_rank(rank: int, port: int, path: str, steps: int, out: str) -> None:
    """One rank of the loop that one writes by hand."""
    import time

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Llama(Settings(**MODEL)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    count = (len(tokens) - 1) // 64
    rows = np.lib.stride_tricks.as_strided(tokens, (count, 65), (128, 2))
    order = np.random.default_rng(0).permutation(count)
    ends = []
    for step in range(steps):
        start = (step * BATCH + rank * BATCH // 2) % (count - BATCH)
        windows = torch.from_numpy(rows[order[start : start + BATCH // 2]].astype(np.int64))
        for group in optimizer.param_groups:
            group["lr"] = LR * factor(step + 1, steps)
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        ends.append(time.perf_counter())
    if rank == 0:
        np.save(out, np.array(ends))
    dist.barrier()  # nobody leaves while the other still listens to it
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own teardown


def bare(path: Path, steps: int) -> float:
    """Mean seconds a step."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        out = f"{folder}/ends.npy"
        torch.multiprocessing.spawn(bare_rank, (port, str(path), steps, out), nprocs=2)
        return float(np.diff(np.load(out)[SKIPPED:]).mean())


def ours(path: Path, steps: int) -> float:
    """Mean seconds a step."""
    recipe = {
        "name": "two",
        "task": {"kind": "language_model", "model": MODEL | {"vocabulary": 256}},
        "data": {"train": {"sources": [{"kind": "tokens", "path": str(path)}]}},
        "batch": {"size": BATCH},
        "budget": {"steps": steps},
        "optimizer": {"lr": LR, "weight_decay": 0.0, "clip": CLIP},
        "schedule": {"kind": "cosine", "warmup": {"steps": WARMUP}},
        "launch": {"processes": 2, "threads": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = drivetrain.train(recipe, run=folder, progress=False).run
        ends = [record.time for record in read(run / "ledger.jsonl") if record.kind == "step"]
    return float(np.diff(ends[SKIPPED:]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--pairs", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint16).tofile(path)
        pairs = []
        for number in range(asked.pairs):
            order = (bare, ours) if number % 2 == 0 else (ours, bare)
            taken = {function: function(path, asked.steps) for function in order}
            pairs.append((taken[bare], taken[ours]))
    extra = [1e6 * (own - plain) for plain, own in pairs]
    ratios = [own / plain for plain, own in pairs]
    print(
        f"two processes: bare DDP {1e6 * statistics.median(p for p, _ in pairs):.0f} us a step; ours "
        f"{statistics.median(extra):+.0f} us ({min(extra):+.0f} to {max(extra):+.0f}), "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
