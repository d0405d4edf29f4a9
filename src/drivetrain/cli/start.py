"""What `drivetrain train` does: its options are checked, then the run is started in or beside this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from drivetrain.api import start
from drivetrain.cli.checks import require_resume
from drivetrain.cli.dry_run import dry_run
from drivetrain.cli.keys import keys
from drivetrain.launch.job import Job, StartOptions
from drivetrain.launch.preparation import prepare_job, runs_with_other_code
from drivetrain.launch.rundir import ANSWER
from drivetrain.runtime.place import Place, from_environment
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import within
from drivetrain.spec.load import Resolved, load
from drivetrain.watch.console import closing


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The command line as it was typed; `started` is when, in Unix seconds."""

    recipe: str
    overrides: Sequence[str]
    run: Path | None
    processes: int | None
    resume: str
    override: Sequence[str]
    ignore: Sequence[str]
    steps: int | None
    replay: bool
    strict_environment: bool
    as_json: bool
    started: float


def start_here(options: TrainOptions) -> int:
    """Train, or make the dry run that is asked for, and return the exit code.

    Raises Failure: 64 for options that do not go together, and what loading the recipe and starting a run raise.
    """
    require_resume(options.resume)
    _require_ignorable(options.ignore)
    if options.as_json and options.steps != 0:
        raise Failure(Exit.BAD_COMMAND, "--json without --steps 0", "see `drivetrain report --json`")
    place = from_environment(os.environ)
    overrides = _with_processes(options, place)
    source = _source(options)
    run = _run_directory(options, source)
    resolved = load(options.recipe, overrides)
    asked = StartOptions(
        resume=options.resume,
        override=options.override,
        ignore=options.ignore,
        strict_environment=options.strict_environment,
        most_steps=options.steps,
        replay=str(source) if options.replay else None,
        started=options.started,
    )
    job = prepare_job(resolved, run=run, overrides=overrides, options=asked)
    leads = place is None or place.rank == 0
    console = Console(file=sys.stdout)
    if leads and not options.as_json:
        beside = runs_with_other_code(job, resolved.recipe) if run is None else []
        for note in [*resolved.notes, *beside]:
            console.print(note, markup=False, highlight=False)
    if options.steps == 0:
        outcome = dry_run(job, resolved, in_process=place is not None, tells=leads, as_json=options.as_json)
    else:
        outcome = _train(job, resolved, place, console)
    with _terminal_may_be_gone():
        sys.stdout.flush()
        if outcome.code is not Exit.DONE:
            print(outcome.line(), file=sys.stderr, flush=True)
    if place is not None:
        # gloo's threads sometimes abort the interpreter's own teardown.
        os._exit(outcome.code)
    return int(outcome.code)


def _require_ignorable(parts: Sequence[str]) -> None:
    for part in parts:
        if part != "optimizer":
            raise Failure(Exit.BAD_COMMAND, f"--ignore {part}", "only the optimizer's state can be ignored")


def _with_processes(options: TrainOptions, place: Place | None) -> list[str]:
    """The overrides with the number of processes; torchrun and srun have decided it already."""
    processes = options.processes
    if place is not None:
        processes = place.world
    if processes is None:
        return list(options.overrides)
    return [*options.overrides, f"launch.processes={processes}"]


def _source(options: TrainOptions) -> Path:
    """Where the recipe is; of a replay the run directory, as a path that holds wherever the job is started."""
    if not options.replay:
        return Path(options.recipe)
    source = Path(options.recipe).resolve()
    if not (source / "ledger.jsonl").is_file():
        raise Failure(Exit.BAD_COMMAND, f"--replay: {options.recipe} is no run", "name a run directory")
    return source


def _run_directory(options: TrainOptions, source: Path) -> Path | None:
    """Where to train; None where the recipe's digest is to decide."""
    run = options.run
    if run is None and source.is_dir():
        run = source
        if options.replay:
            run = source.with_name(f"{source.name}-replay")
    if options.replay and run is not None and run.resolve() == source:
        raise Failure(Exit.BAD_COMMAND, f"--replay into {run} itself", "leave --run out, or name another directory")
    return run


def _train(job: Job, resolved: Resolved, place: Place | None, console: Console) -> Outcome:
    """Train to the end, with keys at the terminal where this process leads alone; then say where everything is."""
    run = Path(job.folder)
    if place is None:
        with keys(run, console.print):
            outcome = start(job, resolved, console, in_process=False)
    elif place.rank == 0:
        outcome = start(job, resolved, console, in_process=True)
    else:
        return start(job, resolved, None, in_process=True)
    with _terminal_may_be_gone(), suppress(TimeoutError):  # the run directory does not answer
        command = shlex.join(["drivetrain", *sys.argv[1:]])
        within(ANSWER, lambda: closing(console, run, outcome, command))
    return outcome


@contextmanager
def _terminal_may_be_gone() -> Iterator[None]:
    """What is said to a terminal that was closed goes nowhere, and is no error."""
    try:
        yield
    except OSError:
        # The interpreter flushes both at its end, and would fail there again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
