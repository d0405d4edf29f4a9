"""The process that plans a run while that trains: it stands back for everything else, and ends with the run."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.ledger.records import Planned, PlannedMemory, PlannedRank
from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from drivetrain.plan.memory import StepMemory
    from drivetrain.run.planning import Prediction

_CPU = 120  # seconds
_MEMORY = 4 << 30  # bytes
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13  # of linux/ioprio.h
_FIRST_TO_GO = "1000"  # of /proc/self/oom_score_adj


def main(asked: int) -> None:
    """Plan what the file of this descriptor asks for, and print what was found as JSON. Never returns."""
    # What user code prints must not come between.
    answer = os.dup(1)
    os.dup2(2, 1)
    stand_back()
    threading.Thread(target=_end_with_run, daemon=True).start()
    code = int(Exit.INTERNAL)
    try:
        with open(asked, "rb") as file:
            found = planned(json.load(file))
        os.write(answer, json.dumps(found.to_json()).encode())
        code = 0
    except Failure as failure:
        print(failure.outcome.line(), file=sys.stderr)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def stand_back() -> None:
    """Take what nobody else wants of cores, disk and memory, and not without end: a group of processes of its own, the
    lowest priority, and the first to go where memory is short."""
    with suppress(OSError):
        os.setpgid(0, 0)
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    if sys.platform == "linux":
        if number := _IOPRIO_SET.get(platform.machine()):
            ctypes.CDLL(None).syscall(number, 1, 0, _IDLE)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def _end_with_run() -> None:
    """The run holds the other end of stdin, and writes nothing: it ends when the run does."""
    with suppress(OSError):
        os.read(0, 1)
    os._exit(int(Exit.STOPPED))


def planned(asked: Mapping[str, Any]) -> Planned:
    """What a run takes; `asked` is what `run.plan_request` asks for."""
    import torch

    from drivetrain.run.planning import kept_commits, open_plan, predictions
    from drivetrain.spec.load import load

    torch.set_num_threads(1)
    folder = Path(asked["modules"]) if asked["modules"] else None
    recipe = replace(load(asked["recipe"], folder=folder, origins=asked["origins"]).recipe, lanes=asked["lanes"])
    sizes = recipe.parallel.sizes(asked["world"])
    opened = open_plan(recipe, sizes.world, data=False, epoch=asked["epoch"])
    found = predictions(opened, sizes)
    ranks = {str(rank): _of_rank(each) for rank, each in found.items()}
    state = sum(each.state for each in found.values())
    return Planned(ranks=ranks, state=state, kept=kept_commits(opened), how=found[0].how)


def _of_rank(found: Prediction) -> PlannedRank:
    first, later = _memory(found.first), _memory(found.later)
    return PlannedRank(first=first, later=later, flops=found.flops, sent=found.sent, written=found.written)


def _memory(step: StepMemory) -> PlannedMemory:
    from drivetrain.plan.memory import by_kind

    peak = step.peak
    return PlannedMemory(bytes=sum(peak.peak), phase=peak.phase, kinds=by_kind(peak.peak))
