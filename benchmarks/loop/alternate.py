"""The loop's own cost, step by step in turn with the bare loop's: `python alternate.py [STEPS]`.

Each step of ours begins, in the task's `update`, with a step of the bare loop on a network of its own. What is not in
that step is ours. So the two are a millisecond apart, and a machine that is slow for a second is slow for both.
"""

import sys
import time
from itertools import pairwise
from statistics import fmean as mean
from statistics import median

import frameworks
import torch
from task import CLIP, LR, Classify, Rows, build, factor, loss_of, optimizer_for

torch.set_num_threads(1)
SKIPPED = 200
BLOCK = 250  # steps whose mean is one figure of the spread


class Alternating(Classify):
    """The training of the loop benchmark, with a bare step before each of its own."""

    spans: list[tuple[float, float]] = []
    steps = 0

    def __init__(self) -> None:
        self.model, self.rows = build(), Rows()
        self.optimizer = optimizer_for(self.model)
        self.spans.clear()

    def update(self, step) -> None:
        began = time.perf_counter()
        self.bare(step.index)
        self.spans.append((began, time.perf_counter()))
        super().update(step)

    def bare(self, step: int) -> None:
        """As in `frameworks.bare`."""
        features, classes = self.rows.batch(step)
        for group in self.optimizer.param_groups:
            group["lr"] = LR * factor(step, self.steps)
        self.optimizer.zero_grad()
        loss_of(self.model, features, classes).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


def main(steps: int) -> None:
    frameworks.Classify = Alternating
    Alternating.steps = steps
    frameworks.drivetrain(steps)
    spans = Alternating.spans[SKIPPED:]
    bare = [(end - begin) * 1e6 for begin, end in spans]
    own = [(after[0] - before[1]) * 1e6 for before, after in pairwise(spans)]
    blocks = [mean(own[at : at + BLOCK]) - mean(bare[at : at + BLOCK]) for at in range(0, len(own) - BLOCK, BLOCK)]
    print(
        f"bare step {median(bare):.0f} us; ours over it: mean {mean(own) - mean(bare):.0f} us, "
        f"means of {BLOCK} steps {median(blocks):.0f} ({min(blocks):.0f} to {max(blocks):.0f}), "
        f"median {median(own) - median(bare):.0f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
