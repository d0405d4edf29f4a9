"""A step of fused AdamW on the CPU, ours beside torch's own, in turn: `python benchmarks/fused.py [--rounds N]`.

The networks are the loop benchmark's (8 tensors) and a deep, narrow one (40); one thread.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

import torch
from torch import nn

from drivetrain.optim.fused import FusedAdam

STEPS = 5  # of each, one after the other, in a round

NETWORKS = {
    "8 tensors, 43 thousand numbers": [64, 128, 128, 128, 10],
    "40 tensors, 5 thousand numbers": [16] * 21,
}


def seconds(step: Callable[[], object]) -> float:
    """Of one step."""
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - began) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for what, sizes in NETWORKS.items():
        network = nn.Sequential(*[nn.Linear(*widths) for widths in pairwise(sizes)])
        optimizer = torch.optim.AdamW(network.parameters(), fused=True)
        gradients = [torch.randn_like(parameter) for parameter in network.parameters()]
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        fused = FusedAdam(optimizer)
        fused.step(gradients)  # torch's own: the state begins
        ours = partial(fused.step, gradients)
        pairs = [(seconds(optimizer.step), seconds(ours)) for _ in range(rounds)]
        ratios = sorted(torchs / own for torchs, own in pairs)
        print(
            f"{what}: torch {1e6 * median(t for t, _ in pairs):.0f} us, ours {1e6 * median(o for _, o in pairs):.0f}; "
            f"{median(ratios):.2f} times as fast (80% of rounds within {ratios[rounds // 10]:.2f} to "
            f"{ratios[-1 - rounds // 10]:.2f})"
        )


if __name__ == "__main__":
    main()
