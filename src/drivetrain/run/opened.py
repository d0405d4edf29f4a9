"""The first stage of a start: the processes have joined, the run directory is taken, and the inputs are open."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.checkpoint.compatible import deciding
from drivetrain.loop.task import Task
from drivetrain.run.build import Inputs, build_task, open_inputs, require_loss, require_metrics
from drivetrain.run.context import AttemptContext
from drivetrain.run.resume import Resumer
from drivetrain.run.user_code import require_as_imported, require_code_of_command
from drivetrain.runtime.device import PACKAGE
from drivetrain.runtime.group import Group, require_same
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.affects import bits_digest

_CLOCKS = 60.0
"""Seconds that machines' clocks may differ without a word."""


@dataclass(frozen=True)
class OpenedRun:
    """What an attempt has before it looks for a state to go on from."""

    context: AttemptContext
    group: Group
    device: torch.device
    resumer: Resumer
    task: Task
    inputs: Inputs
    mesh: Mesh
    unlike: str = ""
    """How the ranks' environments differ, where they do."""


def open_run(context: AttemptContext, mesh: Mesh, resumer: Resumer) -> OpenedRun:
    """Take the run directory and open what the recipe names. Every rank calls it, and has the same inputs after it.

    Raises Failure: 85 or 76 where the directory is not this run's, 76 where the code has changed since the command was
    given or since this process imported it, 78 where the task does not fit the recipe, and what sources raise.
    """
    recipe, group = context.recipe, mesh.group
    group.agree("recipe", bits_digest(recipe))
    environments = group.gather_json(deciding(context.environment))
    if recipe.exact or recipe.guard.recompute:  # bits are compared between ranks
        require_same("the environment", environments)
    unlike = unlike_environments(environments)
    group.agree("the user's code", context.code.digest)
    require_code_of_command(context.code, context.job)
    require_as_imported(context.code)
    # One process takes the directory for all; the others only read commits.
    if group.leader:
        resumer.claim()
    resumer.share(group, first_here=context.place.local_rank == 0)
    context.startup.lap("join")
    task = build_task(recipe)
    inputs = open_inputs(recipe, context.folder, task)
    group.agree("data", inputs.digests)
    require_as_imported(context.code)  # also what was imported just now, and may be edited until it trains again
    context.startup.lap("data")
    require_loss(recipe, task)
    require_metrics(recipe, task)
    group.barrier()
    if note := unequal_clocks(group.gather_json(time.time())):
        resumer.notes.append(note)
    if unlike:
        resumer.notes.append(f"replicas may come to other bits: {unlike}")
    return OpenedRun(context, group, mesh.device, resumer, task, inputs, mesh, unlike)


def unlike_environments(environments: Sequence[Mapping[str, Any]]) -> str:
    """What of the ranks' environments differs that decides bits; empty where it is all the same."""
    for rank, environment in enumerate(environments):
        for name, value in environment.items():
            if value != environments[0].get(name):
                return f"rank {rank} has {name.removeprefix(PACKAGE)} {value}, rank 0 {environments[0].get(name)}"
    return ""


def unequal_clocks(times: Sequence[float]) -> str:
    """What the ledger should say of the ranks' clocks (Unix seconds, read at the same moment); empty where it is all
    the same: the leader's decides when a run ends, and times of logs are each machine's own."""
    ahead = [clock - times[0] for clock in times]
    rank = max(range(len(times)), key=lambda number: abs(ahead[number]))
    if abs(ahead[rank]) <= _CLOCKS:
        return ""
    which = "ahead of" if ahead[rank] > 0 else "behind"
    return f"the clock of rank {rank} is {abs(ahead[rank]):.0f} s {which} rank 0's, which decides when the run ends"
