"""A task on machines whose clocks differ: that of rank 1 is a day ahead."""

import os
import time

import paced

DAY = 86400.0


class Ahead(paced.Paced):
    """Its process's clock is changed when it is made."""

    def __init__(self, gate: str):
        super().__init__(gate)
        if os.environ.get("RANK_AHEAD") == "1" and _rank() == 1:
            real = time.time
            time.time = lambda: real() + DAY


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0
