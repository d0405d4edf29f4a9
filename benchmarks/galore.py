"""GaLore's step, state and refresh beside galore-torch 1.0 and torch's fused AdamW. `python benchmarks/galore.py`.

The model is Llama-like with 16.9 million parameters (10.6 million in projected matrices), rank 128, gap 200, fp32; the
gradients are those of one batch of text. It makes its own environment for galore-torch. All take turns, round by
round, on the same gradients; told are medians, and ratios of medians, of processor time. The worst step of galore-torch
is one with a refresh of all matrices, as it has every 200 steps; ours is so only at the run's first step.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from environments import environment

RANK, GAP, LR = 128, 200, 1e-2


def measure(rounds: int, threads: int, matmul: str) -> None:
    """Inside the environment."""
    import torch

    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    steps(rounds)
    for shape in ((384, 1024), (1024, 4096)):
        refreshes(shape, max(3, rounds // 3))


def steps(rounds: int) -> None:
    """Optimizer steps, and what their states hold."""
    import galore_torch
    import torch

    from drivetrain.optim.groups import assign
    from drivetrain.optim.network_optimizer import build_network_optimizers
    from drivetrain.optim.recipe import Constant, GaLore
    from drivetrain.optim.schedules import Horizon
    from drivetrain.spec.amount import Scale
    from drivetrain.spec.batches import Batches

    settings = GaLore(lr=LR, rank=RANK, gap=GAP)
    model = network()
    parts = assign({"model": model}, settings)["model"]
    matrices = [p for part in parts if part.matrix for p in part.parameters]
    others = [p for part in parts if not part.matrix for p in part.parameters]

    def ours(gap: int = GAP) -> torch.optim.Optimizer:
        chosen = replace(settings, gap=gap)
        network_optimizer = build_network_optimizers(
            {"model": model}, chosen, Constant(), Horizon(1, Scale(Batches(1)))
        )["model"]
        network_optimizer.advance(1)
        return network_optimizer.optimizer

    def theirs(gap: int = GAP) -> torch.optim.Optimizer:
        projected = {"params": matrices, "rank": RANK, "update_proj_gap": gap, "scale": 0.25, "proj_type": "std"}
        return galore_torch.GaLoreAdamW([{"params": others}, projected], lr=LR, no_deprecation_warning=True)

    adamw = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    quiet = {"ours": ours(gap=10**9), "galore-torch": theirs(gap=10**9), "fused AdamW": adamw}
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(matrices)} matrices, rank {RANK}")
    for name, optimizer in quiet.items():
        optimizer.step()
        print(f"state of {name}: {reachable(optimizer) / 1e6:.2f} MB")
    whole = ours()
    whole.step()
    first, later, refreshing = defaultdict(list), defaultdict(list), []
    for _ in range(rounds):
        for name, build in (("ours", ours), ("galore-torch", theirs)):
            first[name].append(timed(build().step))
        for name, optimizer in quiet.items():
            later[name] += [timed(optimizer.step) for _ in range(5)]
        refreshing += [timed(whole.step) for _ in range(GAP // rounds)]
    turns = sorted(refreshing)[-len(matrices) :]  # the steps that refresh a basis take longest
    told("a step without refresh", "ours", later["ours"], "galore-torch", later["galore-torch"])
    told("a step without refresh", "fused AdamW", later["fused AdamW"], "ours", later["ours"])
    told("all bases anew, ours at the first step only", "ours", first["ours"], "galore-torch", first["galore-torch"])
    told("its worst step, and ours with a refresh", "ours", turns, "galore-torch", first["galore-torch"])
    print(f"the longest of {len(refreshing)} steps of ours: {max(refreshing):.0f} ms")


def told(what: str, name: str, times: Sequence[float], other: str, others: Sequence[float]) -> None:
    """Two medians, with the least time, and their ratio."""
    mine, its = statistics.median(times), statistics.median(others)
    print(
        f"{what}: {name} {mine:.1f} ms (least {min(times):.1f}), {other} {its:.1f} ms (least {min(others):.1f}): "
        f"{other} / {name} = {its / mine:.2f}",
        flush=True,
    )


def network():
    """The model of 16.9 million parameters, with gradients of text."""
    import torch

    from drivetrain.tasks.language_model.llama import Llama
    from drivetrain.tasks.language_model.recipe import Llama as Settings

    torch.manual_seed(0)
    model = Llama(Settings(vocabulary=8192, width=384, depth=6, heads=6, hidden=1024, context=128, tied=False))
    tokens = torch.frombuffer(bytearray(inspect.getsource(inspect).encode()), dtype=torch.uint8).long()
    windows = tokens[: 8 * 129].view(8, 129)
    torch.nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
    return model


def reachable(optimizer) -> int:
    """Bytes of all storages that can be reached from an optimizer's state."""
    import torch

    storages = {}

    def walk(value: object) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            for part in value.values():
                walk(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part)
        elif hasattr(value, "__dict__"):
            walk(vars(value))

    walk(dict(optimizer.state))
    return sum(storages.values())


def refreshes(shape: tuple[int, int], rounds: int) -> None:
    """A basis beside torch's full SVD: milliseconds and captured energy."""
    import torch

    from drivetrain.optim.subspace import OVERSAMPLING, exact, subspace

    m, n = shape
    torch.manual_seed(0)
    bases = [torch.linalg.qr(torch.randn(size, m))[0] for size in (m, n)]
    for name, spectrum in spectra(m).items():
        matrix = bases[0] * spectrum @ bases[1].T + (0.1 / n**0.5 * torch.randn(m, n) if "noise" in name else 0.0)
        before = matrix + 0.3 * matrix.norm() / (m * n) ** 0.5 * torch.randn(m, n)
        noise = torch.randn(n, RANK + OVERSAMPLING)
        last = exact(before, RANK)

        def warm(iterations: int, matrix=matrix, last=last, noise=noise) -> torch.Tensor:
            return subspace(matrix, RANK, torch.cat([matrix.T @ last, noise[:, RANK:]], 1), iterations)

        methods: dict[str, Callable] = {
            "torch.linalg.svd": lambda matrix=matrix: torch.linalg.svd(matrix, full_matrices=False)[0][:, :RANK],
            "exact": lambda matrix=matrix: exact(matrix, RANK),
            "from random numbers, 2 iterations": lambda m=matrix, s=noise: subspace(m, RANK, s, 2),
            "from the last basis, 2 iterations": lambda warm=warm: warm(2),
            "from the last basis, 1 iteration": lambda warm=warm: warm(1),
        }
        times: dict[str, list[float]] = {method: [] for method in methods}
        for _ in range(rounds):
            for method, run in methods.items():
                times[method].append(timed(run))
        full = statistics.median(times["torch.linalg.svd"])
        best = (methods["torch.linalg.svd"]().T.double() @ matrix.double()).square().sum()
        for method, run in methods.items():
            energy = float((run().T.double() @ matrix.double()).square().sum() / best)
            took = statistics.median(times[method])
            print(f"{m} x {n} {name}: {method}: {took:.1f} ms, {full / took:.1f}x, energy {energy:.5f}", flush=True)


def spectra(m: int):
    """Singular values: a slow decay, and 64 strong directions in noise."""
    import torch

    index = torch.arange(1, m + 1)
    return {"decay": index**-0.7, "64 directions and noise": (index <= 64) * torch.linspace(1.0, 0.5, m)}


def timed(run: Callable) -> float:
    """Milliseconds of processor time: what others do on a shared machine counts less than on the clock."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matmul", choices=("highest", "high", "medium"), default="highest")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        measure(asked.rounds, asked.threads, asked.matmul)
        return
    python = environment("galore", "galore-torch==1.0", "transformers", "bitsandbytes")
    command = [str(python), __file__, "--inside", *sys.argv[1:]]
    settings = os.environ | {"OMP_NUM_THREADS": str(asked.threads), "CUDA_VISIBLE_DEVICES": ""}
    raise SystemExit(subprocess.run(command, check=False, env=settings).returncode)


if __name__ == "__main__":
    main()
