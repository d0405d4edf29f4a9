"""`drivetrain plan`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drivetrain.cli.options import AsJson, Overrides
from drivetrain.cli.submit import Targets

if TYPE_CHECKING:
    from drivetrain.plan.duration import Rate
    from drivetrain.run.planned import PlanOptions
    from drivetrain.run.planning import Limit
    from drivetrain.spec.recipe import Recipe

Simulate = Annotated[
    bool, typer.Option("--simulate", help="Goodput under failures, on clusters of up to 16,384 processes.")
]
Assume = Annotated[
    list[str] | None, typer.Option(metavar="NAME=NUMBER", help="What a simulation takes for known; may be repeated.")
]
Chip = Annotated[str | None, typer.Option(help="A device of the table, such as H100: memory, peak and link.")]


def plan(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, a file, or a run directory.")],
    overrides: Overrides = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TARGET", help="On this target's machines.")] = None,
    processes: Annotated[int | None, typer.Option(help="On so many processes; else as the recipe says.")] = None,
    memory: Annotated[str | None, typer.Option(help="What a process may take, such as 80GB.")] = None,
    chip: Chip = None,
    mfu: Annotated[float, typer.Option(help="The share of the chip's peak that is assumed.")] = 0.4,
    like: Annotated[list[Path] | None, typer.Option(help="A run whose rate is taken.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Make 20 steps here, and take their rate.")] = False,
    price: Annotated[float | None, typer.Option(help="Of an hour of a process.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw a step's memory into this file.svg.")] = None,
    rank: Annotated[int, typer.Option(help="The process that is looked at.")] = 0,
    data: Annotated[bool, typer.Option(help="Open the data, for the passes over them.")] = True,
    search: Annotated[bool, typer.Option("--search", help="Try meshes, micro-batches and activations.")] = False,
    seconds: Annotated[float, typer.Option(help="How long a search may take.")] = 60.0,
    whole: Annotated[bool, typer.Option("--whole", help="Trace every layer, however many are alike.")] = False,
    simulate: Simulate = False,
    assume: Assume = None,
    seed: Annotated[int, typer.Option(help="Of a simulation's failures.")] = 0,
    targets: Targets = None,
    as_json: AsJson = False,
) -> int:
    """What a run will take, before anything is allocated: steps, FLOPs, memory, disk, time and cost."""
    from drivetrain.plan.chips import chip as chip_of
    from drivetrain.run.planned import PlanOptions
    from drivetrain.spec.load import load

    loose = load(recipe, overrides or [], whole=False).recipe
    count, limit, chip = _place(loose, to, targets, processes, chip)
    resolved = load(recipe, [*(overrides or []), f"launch.processes={count}"])
    options = PlanOptions(
        processes=count,
        limit=_limit(memory, chip) or limit,
        chip=chip_of(chip) if chip else None,
        mfu=mfu,
        like=tuple(like or ()),
        rates=_measured(recipe, overrides or [], measure),
        price=price,
        data=data,
        rank=rank,
        whole=whole,
        picture=picture,
    )
    if simulate:
        return _say_simulated(resolved.recipe, options, assume or [], seed, as_json)
    return _say(resolved.recipe, options, seconds if search else None, as_json)


def _say_simulated(recipe: Recipe, options: PlanOptions, assumed: list[str], seed: int, as_json: bool) -> int:
    import json

    from drivetrain.cli.simulated import lines
    from drivetrain.run.simulated import SimulationOptions, simulated
    from drivetrain.spec.exits import Exit

    found = simulated(recipe, options, SimulationOptions(assumed=assumed, seed=seed))
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
    return Exit.DONE


def _measured(recipe: str, overrides: list[str], asked: bool) -> list[Rate]:
    """If it is asked for, what the recipe does in a second on the processes that it wants here."""
    if not asked:
        return []
    from drivetrain.run.measuring import measured_rate
    from drivetrain.spec.load import load

    return [measured_rate(load(recipe, overrides))]


def _say(recipe: Recipe, options: PlanOptions, seconds: float | None, as_json: bool) -> int:
    """The plan, or what a search of so many seconds has found."""
    import json

    from drivetrain.run.planned import plan as planned
    from drivetrain.run.searching import search
    from drivetrain.spec.exits import Exit

    if seconds is None:
        found, lines = planned(recipe, options), _lines
    else:
        found, lines = search(recipe, options, seconds), _found_lines
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
    return Exit.DONE


def _place(
    recipe: Any, to: str | None, targets: Path | None, processes: int | None, chip: str | None
) -> tuple[int, Limit | None, str | None]:
    """How many processes; what each may take where a target says it; and the chip, which a target may name too."""
    from drivetrain.launch.targets.config import settings_of
    from drivetrain.launch.targets.recipe import mebibytes
    from drivetrain.plan.chips import known
    from drivetrain.run.planned import processes_of
    from drivetrain.run.planning import Limit

    if to is None:
        return processes_of(recipe) if processes is None else processes, None, chip
    settings = settings_of(to, recipe.launch.targets, targets)
    count = settings.nodes * settings.processes if processes is None else processes
    if settings.accelerators:
        return count, None, chip or known(settings.accelerator)
    if settings.memory is None:
        return count, None, chip
    limit = (mebibytes(settings.memory) << 20) // settings.processes
    return count, Limit(limit, f"target {to}, of {settings.memory} for {settings.processes} processes"), chip


def _limit(memory: str | None, chip: str | None) -> Limit | None:
    from drivetrain.plan.chips import chip as chip_of
    from drivetrain.plan.chips import memory_size
    from drivetrain.run.planning import Limit

    if memory:
        return Limit(memory_size(memory), "--memory")
    if chip:
        found = chip_of(chip)
        return Limit(int(found.memory), f"--chip {chip}")
    return None


def _lines(found: dict[str, Any]) -> Iterator[str]:
    from drivetrain.cli.dry_run import task_line
    from drivetrain.plan.picture import readable

    yield task_line(found)
    yield f"mesh            {found['mesh']} (processes: {found['processes']:,})"
    yield f"length          {_length(found['length'])}"
    yield from _flops(found["flops"], found["processes"])
    yield from _memory(found["memory"], found["rank"])
    commit = found["commit"]
    written = f"rank {found['rank']} writes {readable(commit['written_here'])}"
    yield f"commit          {readable(commit['bytes'])}, of which {written}"
    if commit["copied_here"]:
        where = "beside the networks" if commit["beside_networks"] else "in the host's memory"
        yield f"                and holds a copy of {readable(commit['copied_here'])} {where}"
    yield f"disk            {readable(commit['disk'])}: at most {commit['kept']} commits, with the one being written"
    length = found["length"]
    yield from _time(found["time"], length["tokens"] and length["tokens"] / length["samples"])
    for note in found["notes"]:
        yield f"note            {note}"


def _found_lines(found: dict[str, Any]) -> Iterator[str]:
    from drivetrain.plan.picture import readable

    yield f"{found['tried']} of {found['of']} settings tried; least memory first; time: {found['unit']}"
    for row in found["front"]:
        yield f"{readable(row['bytes']):>12}  {row['time']:.4g}  {' '.join(map(repr, row['overrides']))}"
    for cause in dict.fromkeys(found["refused"].values()):
        yield f"refused: {cause}"


def _length(length: dict[str, Any]) -> str:
    told = [f"{length['steps']:,} steps of {length['samples_per_step']:,} samples", f"{length['samples']:,} samples"]
    if length["tokens"] is not None:
        told.append(f"{length['tokens']:,} tokens")
    if length["passes"] is not None:
        told.append(f"{length['passes']:.3g} passes over the data")
    return ", ".join(told)


def _flops(flops: dict[str, Any], processes: int) -> Iterator[str]:
    if flops["model"] is not None:
        yield f"FLOPs a step    {flops['model']:.4g} of the model, by {flops['model_source']}"
    yield f"FLOPs counted   {flops['counted']:.4g} a step: {flops['counted_source']}"
    if flops["peak"]:
        yield f"MFU is of       {flops['peak']:.4g} FLOP/s: {processes:,} times {flops['peak_source']}"


def _memory(memory: dict[str, Any], rank: int) -> Iterator[str]:
    from drivetrain.plan.memory import KINDS
    from drivetrain.plan.picture import readable

    yield f"memory          {readable(memory['peak'])} of live tensors at most, rank {rank}; {memory['how']}"
    for name, step in (("first step", memory["first_step"]), ("later steps", memory["step"])):
        kinds = ", ".join(f"{kind} {readable(step[kind])}" for kind in KINDS if step[kind])
        yield f"  {name:<14}{readable(step['bytes'])} in {step['phase']}: {kinds}"
    if "stages" in memory:
        taken = ", ".join(f"rank {rank} {readable(size)}" for rank, size in memory["stages"].items())
        yield f"  stages        {taken}"
    if "limit" in memory:
        share = memory["taken"] / memory["limit"]
        yield f"  fits          {share:.0%} of {readable(memory['limit'])} ({memory['limit_source']})"


def _time(times: list[dict[str, Any]], tokens: float | None) -> Iterator[str]:
    """`tokens` are those of a sample, where all have as many."""
    for each in times:
        told = [f"{each['whole'] / 3600:,.2f} h, {each['step']:.3g} s a step"]
        rate = each["samples_per_second"]
        told.append(f"{rate * tokens:,.4g} tokens/s" if tokens else f"{rate:,.4g} samples/s")
        if each["mfu"] is not None:
            told.append(f"MFU {each['mfu']:.1%}")
        if each["cost"] is not None:
            told.append(f"costs {each['cost']:,.2f}")
        yield f"time            {', '.join(told)}: by {each['source']}"
    if not times:
        yield "time            not known: say --chip, --like a run, or --measure"
