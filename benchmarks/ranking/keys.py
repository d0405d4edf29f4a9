"""What a step pays for the keys of one table on their owner: `python benchmarks/ranking/keys.py [--reduced]`.

`look up` turns the keys of a step, each once, into rows, `let in` counts them and lets new ones in, and `who goes` is
the same in a step at whose end it is looked who has to go. The keys are those of the prototype, about 14,000 a step.
Told is the processor's time of one thread, in the second half of the steps.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from drivetrain import Admit, Amount, Evict, Keyed, Table
from drivetrain.engine.tables.keyed import KeyedTable
from drivetrain.engine.tables.layout import Stretch
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

WHOLE = {"rows": 1 << 17, "keys": 80_000, "occurrences": 20_000, "steps": 60}
REDUCED = {"rows": 1 << 12, "keys": 800, "occurrences": 200, "steps": 12}
EVERY = 10
KINDS = {
    "all are let in": Keyed(),
    "at the third time": Keyed(admit=Admit(count=3)),
    "and the oldest go": Keyed(
        admit=Admit(count=3), evict=Evict(age=Amount(steps=5), least="count", every=Amount(steps=EVERY))
    ),
}


def main() -> None:
    """Print medians in ms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reduced", action="store_true")
    sizes = REDUCED if parser.parse_args().reduced else WHOLE
    torch.set_num_threads(1)
    for name, keyed in KINDS.items():
        table = KeyedTable(Table("t", sizes["rows"], 16, keyed=keyed), Stretch("t", 0, sizes["rows"], 0, 0))
        table.lay_rule(Scale(Batches(1)))
        draw, looked, let_in, gone, asked = np.random.default_rng(0), [], [], [], 0
        for step in range(1, sizes["steps"] + 1):
            drawn = (draw.random(sizes["occurrences"]) ** 3 * sizes["keys"]).astype(np.int64) * 0x2545F4914F6CDD1D
            keys, counts = np.unique(drawn & ((1 << 63) - 1), return_counts=True)
            began = time.thread_time()
            seen = table.look_up(keys, counts)
            found = time.thread_time()
            table.observe(seen, step)
            looked.append(found - began)
            (let_in if step % EVERY else gone).append(time.thread_time() - found)
            asked = len(keys)
        times = {"look up": looked, "let in": let_in, "who goes": gone}
        told = ", ".join(f"{what} {_late_median(seconds):.2f}" for what, seconds in times.items())
        print(f"{asked:,} keys, {name}: {told} ms")


def _late_median(seconds: list[float]) -> float:
    """In ms."""
    return 1e3 * statistics.median(seconds[len(seconds) // 2 :])


if __name__ == "__main__":
    main()
