"""Goodput of a run on clusters of several sizes, before it is paid for: `drivetrain plan --simulate`, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from drivetrain.plan.flops import peak
from drivetrain.plan.goodput import Choice, Row, row, with_pulse
from drivetrain.plan.run_costs import RunCosts, costs_of_run
from drivetrain.plan.simulation import Cluster, Costs, Setting
from drivetrain.run.planned import PlanOptions, mesh_of
from drivetrain.run.planning import Opened, open_plan, predict
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe

SIZES = (16, 64, 256, 1024, 4096, 16384)
"""Processes that are simulated, beside as many as are asked for."""
PER_NODE = 8
_ASSUMED = "assumed"
_LLAMA = "419 interruptions in 54 days of 2,048 nodes of 8 H100: The Llama 3 Herd of Models, arXiv 2407.21783, table 5"
DEFAULTS: Mapping[str, tuple[float, str]] = {
    "failures": (1.6e-4, _LLAMA),
    "in_place": (0.15, "63 of these 419 were of software"),
    "repair": (3600.0, _ASSUMED),
    "damaged": (1e-3, _ASSUMED),
    "spares": (0.0, "nobody says that there are some"),
    "notice": (0.03, "measured: gloo and the supervisor hear of a killed process in 0.02 to 0.04 s"),
    "restart": (5.0, _ASSUMED),
    "cold": (60.0, _ASSUMED),
    "queue": (60.0, _ASSUMED),
    "pulse": (1e-4, "a small message between two machines, assumed"),
    "spread": (0.0, _ASSUMED),
    "beside": (0.0, _ASSUMED),
    "first": (0.0, _ASSUMED),
}
"""What is taken where nobody knows better, and why. Seconds, but for `failures` of a node in an hour, and shares."""
COPIED = 5e9
"""Bytes a second of a snapshot into the host's memory, and `WRITTEN` of one process's part to its disk: assumed where
nothing was measured."""
WRITTEN = 0.5e9
NOT_MODELLED = (
    "a step takes as long on every size: each process has as much to do as on the run that was measured, and waits no "
    "longer for the slowest of more; only the pulse grows, by as much with each doubling",
    "start, commit and write take as long on every size; shared storage and the rendezvous are not made slower",
    "failures are independent of each other and of age; several machines of one rack do not fail together",
    "hangs, slow machines and steps that are not finite; planned stops; the queue's own waiting time beyond `queue`",
)
_SHARES = ("in_place", "handed_over", "damaged")
_OF_CLUSTER = ("failures", "in_place", "handed_over", "repair", "damaged")
_NAMES = ("per_node", "spares", "pulse", *(one.name for one in fields(Costs)), *_OF_CLUSTER)


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """What is asked of a simulation beside a plan's options: `assumed` values by name, as typed."""

    assumed: Sequence[str] = ()
    seed: int = 0
    sizes: Sequence[int] = SIZES


@dataclass(frozen=True)
class _Known:
    """Values by name, each with its origin. The first word counts."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def learn(self, name: str, value: Any, origin: str) -> None:
        if name not in self.values:
            self.values[name], self.origins[name] = value, origin


def simulated(recipe: Recipe, options: PlanOptions, asked: SimulationOptions) -> dict[str, Any]:
    """Goodput on each size with the recipe's settings and with the best ones, and what all of it follows from.

    Raises Failure: 64 for an assumption that means nothing and for several runs, 66 where nothing says how long a step
    takes, and what planning raises.
    """
    if len(options.like) > 1:
        cause = f"--simulate: --like is given {len(options.like)} times"
        raise Failure(Exit.BAD_COMMAND, cause, "say which run's costs are taken")
    known = _Known()
    for text in asked.assumed:
        known.learn(*_assumption(text), "--assume")
    opened = open_plan(recipe, options.processes, data=False)
    like = costs_of_run(options.like[0]) if options.like else None
    if like:
        _learn_from_run(known, like, recipe)
    _learn_from_plan(known, opened, options)
    for name, (value, origin) in DEFAULTS.items():
        known.learn(name, value, origin)
    _require_shares(known.values)
    steps = opened.scale.batches.steps(opened.total)
    setting = Setting(_interval(opened, steps), recipe.checkpoint.keep, int(known.values["spares"]))
    sizes = sorted({*asked.sizes, options.processes})
    on = like.world if like else options.processes
    rows = [_row(known.values, on, size, setting, (steps, asked.seed)) for size in sizes]
    assumptions = {name: {"value": known.values[name], "origin": known.origins[name]} for name in known.values}
    return {
        "name": recipe.name,
        "steps": steps,
        "assumptions": assumptions,
        "setting": setting._asdict(),
        "sizes": [_told(each, steps) for each in rows],
        "not_modelled": list(NOT_MODELLED),
    }


def _assumption(text: str) -> tuple[str, Any]:
    """A name and its value. Raises Failure(64)."""
    name, _, value = text.partition("=")
    hint = f"NAME=NUMBER, where NAME is one of {', '.join(_NAMES)}"
    if name not in _NAMES:
        raise Failure(Exit.BAD_COMMAND, f"--assume {text}: there is no {name!r}", hint)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (name in ("step", "per_node") and not number):
        raise Failure(Exit.BAD_COMMAND, f"--assume {text}: it is to be a number that is not negative", hint)
    return name, number


def _require_shares(values: Mapping[str, Any]) -> None:
    for name in _SHARES:
        if values[name] > 1 or values["damaged"] == 1:
            raise Failure(
                Exit.BAD_COMMAND, f"--assume {name}={values[name]:g}", "a share is at most 1; damaged is less"
            )


def _learn_from_run(known: _Known, like: RunCosts, recipe: Recipe) -> None:
    seconds = dict(like.seconds)
    if recipe.checkpoint.blocking and "commit" in seconds:  # training stands still until all is written
        seconds |= {"commit": max(seconds["commit"], seconds["writing"]), "writing": 0.0}
    for name, value in seconds.items():
        known.learn(name, value, like.origins[name])
    if like.pulse is not None:
        doubling = like.pulse / math.log2(like.world)
        known.learn("pulse", doubling, f"its telemetry on {like.world} processes, with waiting for the slower one")
    if like.handed_over is not None:
        known.learn("handed_over", like.handed_over, "the share of its restarts that went on from survivors' state")


def _learn_from_plan(known: _Known, opened: Opened, options: PlanOptions) -> None:
    """What follows from recipe and chip, as far as it is not known. Raises Failure(66) where a step's time does not."""
    recipe, sizes = opened.recipe, mesh_of(opened.recipe, options.processes)
    if "step" not in known.values:
        known.learn("step", *_step_by_chip(opened, options))
    known.learn("silence", *_silence(recipe, known.values["step"]))
    shared = sizes.replicated and sizes.world > 1
    origin = "survivors hand over where all hold everything, on one machine"
    known.learn("handed_over", float(shared), origin if shared else f"nobody holds all that another one does: {sizes}")
    known.learn("per_node", PER_NODE, _ASSUMED)
    if {"commit", "writing"} <= known.values.keys():
        return
    found = predict(opened, sizes, rank=options.rank, whole=options.whole)
    copied, written = found.copied / COPIED, found.written / WRITTEN
    told = f"{found.copied:,} B planned of rank {options.rank}, at {COPIED / 1e9:g} GB/s, which is assumed"
    if recipe.checkpoint.blocking:  # no copy is made
        copied, written = written, 0.0
    known.learn("commit", copied, told)
    known.learn("writing", written, f"{found.written:,} B planned, at {WRITTEN / 1e9:g} GB/s, which is assumed")


def _step_by_chip(opened: Opened, options: PlanOptions) -> tuple[float, str]:
    flops, chip = opened.task.flops_per_sample(), options.chip
    most = chip and peak(chip.name, opened.recipe.precision, opened.recipe.matmul)
    if not (flops and chip and most):
        cause = "--simulate: nothing says how long a step takes"
        raise Failure(Exit.INPUT_MISSING, cause, "say --like RUN, --assume step=SECONDS, or --chip NAME")
    per_process = flops * max(opened.scale.batches.sizes) / options.processes
    return per_process / (most * options.mfu), f"{chip.name} at an MFU of {options.mfu:.0%}, which is assumed"


def _silence(recipe: Recipe, step: float) -> tuple[float, str]:
    """How long a lost machine is waited for: the supervisor's patience."""
    patience = recipe.launch.hang_after
    if patience is None:
        return 600.0, "launch.hang_after is null: the group's timeout"
    return max(patience, 3 * step), "launch.hang_after, or three steps where these are longer"


def _interval(opened: Opened, steps: int) -> int:
    """Steps from one commit to the next; all of them where only the end is committed."""
    every = opened.recipe.checkpoint.every
    if every is None:
        return steps
    return every.steps or max(1, opened.scale.batches.steps(every.samples_at(opened.scale)))


def _row(values: Mapping[str, Any], on: int, processes: int, setting: Setting, run: tuple[int, int]) -> Row:
    """`on` so many processes a step's time is known; `run` is how many steps it has, and the seed."""
    own = {one.name: values[one.name] for one in fields(Costs)}
    if not isinstance(own["restart"], tuple):
        own["restart"] = (own["restart"],)
    costs = with_pulse(Costs(**own), values["pulse"], on, processes)
    nodes = max(1, -(-processes // int(values["per_node"])))
    named = {name: values[name] for name in _OF_CLUSTER}
    return row(processes, costs, Cluster(nodes=nodes, **named), setting, *run)


def _told(found: Row, steps: int) -> dict[str, Any]:
    finite = found.between < math.inf
    whole = steps * found.step / found.best.found.goodput
    hours, interval = (found.between / 3600, found.formula / found.step) if finite else (None, None)
    return {
        "processes": found.processes,
        "nodes": found.cluster.nodes,
        "step": found.step,
        "hours_between_failures": hours,
        "failures_in_run": whole / found.between,
        "hours": whole / 3600,
        "asked": _choice(found.asked, found),
        "best": _choice(found.best, found),
        "daly": {"interval": interval, "goodput": found.expected},
    }


def _choice(choice: Choice, found: Row) -> dict[str, Any]:
    simulated = asdict(choice.found)
    seconds = simulated.pop("seconds")
    whole = sum(seconds.values())
    return {
        **choice.setting._asdict(),
        "goodput": choice.found.goodput,
        "per_machine": choice.per_machine(found.cluster.nodes),
        "shares": {bucket: spent / whole for bucket, spent in seconds.items()},
        "simulated": simulated,
    }
