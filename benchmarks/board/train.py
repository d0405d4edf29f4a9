"""The loop benchmark's training, once for each line of the input, in a process of its own: train.py STEPS

Told are the microseconds of a step after the first two fifths: pages are opened meanwhile."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "loop"))
from frameworks import drivetrain

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)


def main(steps: int) -> None:
    for _ in sys.stdin:
        taken = 1e6 * drivetrain(steps)[2 * steps // 5 :]
        print(json.dumps({"median_us": float(np.median(taken)), "mean_us": float(taken.mean())}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
