"""Checks for `python -m accelerator --checks own_checks`: one for each way in which one may end."""

import os
import signal
import time

from accelerator.check import Check, CheckFailedError, NotApplicableError


def works(_here):
    return {"ratio": 0.25}


def wrong(_here):
    raise CheckFailedError("3 of 4 bits")


def skipped(_here):
    raise NotApplicableError("no device")


def broken(_here):
    raise KeyError("name")


def killed(_here):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(_here):
    time.sleep(100)


SECONDS = dict.fromkeys((works, wrong, skipped, broken, killed), 100) | {hangs: 3}
CHECKS = tuple([Check(run.__name__, f"own_checks:{run.__name__}", "ends", own, own) for run, own in SECONDS.items()])
