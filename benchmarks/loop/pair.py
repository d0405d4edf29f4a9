"""Time a framework and another, or the bare loop, in turn, in one process: `python pair.py NAME STEPS BLOCKS [OTHER]`.

It prints JSON."""

import json
import logging
import sys
import warnings

import torch
from frameworks import FRAMEWORKS

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)


def main(name: str, steps: int, blocks: int, other: str = "bare") -> None:
    train, bare = FRAMEWORKS[name], FRAMEWORKS[other]
    for warm_up in (bare, train):
        warm_up(steps // 4)
    pairs = []
    for block in range(blocks):
        order = (bare, train) if block % 2 == 0 else (train, bare)
        taken = {function: function(steps) for function in order}
        pairs.append({"bare": taken[bare].mean(), "own": taken[train].mean()})
        medians = {key: float(torch.tensor(taken[f]).median()) for key, f in (("bare", bare), ("own", train))}
        pairs[-1] |= {f"{key}_median": value for key, value in medians.items()}
    print(json.dumps(pairs))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
