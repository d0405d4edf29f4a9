"""The verbs as Python functions, for scripts and notebooks; the command line calls the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drivetrain.launch import output
from drivetrain.launch.job import Job, StartOptions
from drivetrain.launch.machine import require_supervision
from drivetrain.launch.node import prepare_node
from drivetrain.launch.preparation import prepare_job, runs_with_other_code
from drivetrain.launch.rundir import last_word, prepare, record_first
from drivetrain.launch.submission import NodeWork
from drivetrain.launch.supervisor import supervise
from drivetrain.runtime.place import Node, Place, from_environment, node_from_environment
from drivetrain.spec.affects import customs
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.given import given, is_object
from drivetrain.spec.load import Resolved, load, shipped_names
from drivetrain.spec.objects import Given
from drivetrain.spec.recipe import Recipe
from drivetrain.watch.sinks import follow

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from drivetrain.loop.evaluation import Scores
    from drivetrain.tasks.speech.folders import Converted


@dataclass(frozen=True)
class Result:
    """A run that ended as it should: `stopped` tells whether it was asked to stop before the end of its budget.

    `metrics` is the last evaluation, {set: {metric: value}}; `losses` the last step's. `test` are the test
    sets' scores, once the run is done.
    """

    run: Path
    step: int
    stopped: bool
    losses: dict[str, float]
    metrics: dict[str, dict[str, float]]
    test: dict[str, dict[str, float]]
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What `train` was given and no recipe can name, by the kinds that stand for it."""

    @classmethod
    def load(cls, run: str | Path) -> Result:
        """What a run directory came to so far, also where another process trains it.

        Raises Failure: 66 where there is no run, 74 where its ledger is damaged.
        """
        from drivetrain.ledger.derive import finals
        from drivetrain.ledger.records import EvaluationRecord
        from drivetrain.ledger.run_summary import summary_of

        told = summary_of(Path(run))
        metrics = {}
        for record in told.records:
            if isinstance(record, EvaluationRecord):
                metrics = {name: dict(scores) for name, scores in record.metrics.items()}
        test: dict[str, dict[str, float]] = {}
        for (part, name, metric), (_, value) in finals(told.records).items():
            if part == "test":
                test.setdefault(name, {})[metric] = value
        return cls(
            run=Path(run),
            step=told.steps.step[-1] if told.steps else 0,
            stopped=bool(told.attempts) and told.attempts[-1].code == Exit.STOPPED,
            losses=told.steps.newest(),
            metrics=metrics,
            test=test,
        )

    def networks(
        self, commit: str | None = None, *, weights: Literal["averaged", "trained"] | None = None
    ) -> dict[str, nn.Module]:
        """The networks by name, with the weights of the newest commit or of the named one, in evaluation mode, on the
        recipe's device; `weights` as for `evaluate`. Raises Failure(66) where there is no such commit."""
        from drivetrain.run.finished import open_finished

        with given(self.objects):
            found = open_finished(self.run, commit, weights).networks
        return {name: network.eval() for name, network in found.items()}


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    run: str | Path | None = None,
    resume: str = "auto",
    override: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict_environment: bool = False,
    progress: bool = True,
) -> Result:
    """Train a recipe (a shipped name, a file, a run directory, or a mapping), or go on where its run stopped.

    In a mapping kinds may be objects, classes and functions. An object whose class can be imported, and whose arguments
    are known (a `Task`, a dataclass) and JSON data, is as if class and arguments were written. Any other is used in
    this process alone: `run` names the run's folder then, and the run goes on with the same object given again.

    One process trains in the caller's, so a class that is defined in a script or a notebook can be its task; several
    (`launch.processes`) are started beside it. `resume`, `override`, `ignore` and `strict_environment` are the options
    of `drivetrain train`. Interrupting it commits and returns. Raises `Failure`, whose `outcome` has the exit code,
    the cause and a hint, and whose `__cause__` is what your own code raised, where that was in this process.
    """
    # One keyword for each option of the command, so that a script reads as the command line does.
    from rich.console import Console

    options = StartOptions(
        resume=resume, override=override, ignore=ignore, strict_environment=strict_environment, started=time.time()
    )
    objects = Given(lasting=run is not None)
    if isinstance(recipe, Mapping):
        recipe = objects.plain(recipe)
    with given(objects.objects):
        resolved = load(recipe, overrides, objects.folder)
        if run is None:
            _require_identity(resolved.recipe)
        job = prepare_job(resolved, run=Path(run) if run else None, overrides=overrides, options=options)
        console = Console(file=sys.stdout) if progress else None
        if console:
            beside = [] if run else runs_with_other_code(job, resolved.recipe)
            for note in [*resolved.notes, *beside]:
                console.print(note, markup=False, highlight=False)
        outcome = start(job, resolved, console, in_process=job.processes == 1)
    if outcome.code not in (Exit.DONE, Exit.STOPPED):
        raise Failure.of(outcome) from outcome.raised
    return replace(Result.load(job.folder), objects=objects.objects)


def _require_identity(recipe: Recipe) -> None:
    """Raises Failure(78) where the place of a run follows from an object that decides bits, and that cannot be told
    from another one: its class cannot be imported, or its arguments are not known or no JSON data."""
    for custom, affects in customs(recipe):
        if affects == "bits" and is_object(custom.kind):
            name = custom.kind.partition(":")[2]
            place = custom.places.get("kind", "")
            why = f"{place}{name} is an object that no recipe can name, and nothing else names the run"
            hint = "give drivetrain.train a run=, the run's folder; or give"
            raise Failure(Exit.BAD_RECIPE, why, f"{hint} a class that can be imported, with JSON data as its arguments")


def start(
    job: Job, resolved: Resolved, console: Console | None, *, in_process: bool, node: Node | None = None
) -> Outcome:
    """Run a job with its sinks: beside this process, alone or as one node of several, or in it, as the place that
    torchrun or srun gave it. `resolved` is the job's recipe. The sinks are the first node's."""
    run = Path(job.folder)
    prepare(run)
    place = from_environment(os.environ) or Place()
    if not in_process:
        require_supervision()
        with _sinks(job, resolved, console, leads=node is None or node.rank == 0):
            return supervise(job, node=node, say=_say)
    from drivetrain.run.attempt import execute  # imports torch, which a supervisor does without

    before = last_word(run)
    with _sinks(job, resolved, console, leads=place.rank == 0):
        outcome = execute(job, place, resolved=resolved)
    return record_first(run, outcome, place.rank, before)


def _sinks(job: Job, resolved: Resolved, console: Console | None, *, leads: bool) -> AbstractContextManager[object]:
    """What follows the ledger while a run trains. Only the first process or node does, or trackers get points twice."""
    if not leads:
        return nullcontext()
    return closing(follow(Path(job.folder), resolved.recipe.watch, console, job.started))


def work(given: NodeWork, environment: Mapping[str, str]) -> Outcome:
    """Do one node's part of a submitted job: its environment, its code, and its share of the ranks.

    `environment` tells which node this is, and where its output goes. Changes this process's own environment and
    folder. Raises Failure(64) for an environment that makes no sense, 66 for a secret or archive that is not there.
    """
    from rich.console import Console

    node = node_from_environment(environment, given.nodes)
    job = replace(given.job, started=time.time())
    if place := environment.get("DRIVETRAIN_OUTPUT"):
        begin = output.begin(Path(place), node.attempt)
        output.redirect(Path(f"{begin}-node-{node.rank}.log"))
        job = replace(job, output=str(begin))
    job = prepare_node(given, job)
    console = Console(file=sys.stdout) if node.rank == 0 else None
    return start(job, load(job.recipe), console, in_process=False, node=node)


def evaluate(
    run: str | Path,
    data: str | None = None,
    *,
    commit: str | None = None,
    samples: int | None = None,
    weights: Literal["averaged", "trained"] | None = None,
    init: str | Path | None = None,
) -> Scores:
    """Score a run's newest commit, or the named one, on its validation sets; nothing is written. In place of a run it
    may be a recipe, with the weights that its own `init` names, or that `init` does (as `init.from`).

    `data` is one set's name, validation, test or all; `samples` how many of each set's first samples are scored.
    `weights` says whether a moving average of the weights is taken, or they themselves; None: what training scores.
    Raises Failure: 66 where there is no such run, commit or set, 64 where a recipe has no weights, or a run is given
    some.
    """
    from drivetrain.run.finished import evaluate_recipe, evaluate_run

    is_run = Path(run).is_dir()
    if is_run and init is not None:
        raise Failure(Exit.BAD_COMMAND, f"{run} is a run, which has weights", "leave init out, or name its recipe")
    if is_run or not (Path(run).is_file() or str(run) in shipped_names()):
        return evaluate_run(Path(run), data, commit, samples, weights)
    if commit is not None or weights is not None:
        raise Failure(Exit.BAD_COMMAND, f"{run} is a recipe, which has no commits", "name a run, or leave them out")
    return evaluate_recipe(load(run).recipe, data, samples, str(init) if init else None)


def export(
    run: str | Path,
    to: str | Path,
    commit: str | None = None,
    *,
    weights: Literal["averaged", "trained"] | None = None,
) -> list[Path]:
    """Write the networks of a run's newest commit, or of the named one, to a new folder; returns the files.

    Language models and classifiers are written in Hugging Face's layout, other networks with their own names, or as a
    task of your own says.
    """
    from drivetrain.run.finished import export_run

    return export_run(Path(run), Path(to), commit, weights)


def predict(
    run: str | Path,
    data: str,
    to: str | Path,
    commit: str | None = None,
    *,
    weights: Literal["averaged", "trained"] | None = None,
    processes: int = 1,
    copy: Sequence[str] = (),
) -> int:
    """Write what a run's newest commit, or the named one, predicts of each sample, in their order.

    `data` is the name of a set, or files of rows (a path, a pattern, several with commas between), which are read as
    the recipe reads its own. `processes` - 1 processes are started beside this one; the file has the same bytes on any
    number of them. `copy` are columns of the data that stand before what is predicted: COLUMN, or NAME=COLUMN.

    `to` is a new .jsonl, .csv, .tsv or .parquet file; returns how many samples there are. Raises Failure: 64 where the
    task predicts nothing, 65 where a row cannot be read, 66 where run, commit or set are missing, 73 where the file
    cannot be made.
    """
    from drivetrain.run.prediction import Predicting, predict_run

    columns = {}
    for each in copy:
        name, _, column = each.partition("=")
        if name in columns:
            raise Failure(Exit.BAD_COMMAND, f"--copy {name}: two columns would have this name", "give each its own")
        columns[name] = column or name
    return predict_run(Path(run), data, Path(to), Predicting(commit, weights, processes, columns))


def generate(
    run: str | Path,
    prompts: str | Sequence[str],
    *,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    count: int = 1,
    tokenizer: str | None = None,
    commit: str | None = None,
    weights: Literal["averaged", "trained"] | None = None,
) -> list[dict[str, Any]]:
    """What a run's newest commit, or the named one, makes of each prompt: `count` texts of at most so many tokens, as
    {"prompt", "number", "text", "tokens", "ended"}, or what a task of your own gives.

    Options are those of `drivetrain generate`. The same seed is the same text, whatever other prompts are beside it.
    Raises Failure: 64 where the task generates nothing, 66 where run, commit or tokenizer are missing.
    """
    from drivetrain.loop.sampling import Sampling
    from drivetrain.run.generation import Generation, generate_run

    sampling = Sampling(tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    asked = Generation(sampling=sampling, seed=seed, count=count, tokenizer=tokenizer, commit=commit, weights=weights)
    given = [prompts] if isinstance(prompts, str) else prompts
    return list(generate_run(Path(run), given, asked))


def infer_speech(
    run: str | Path,
    source: str | Path,
    to: str | Path,
    commit: str | None = None,
    *,
    weights: Literal["averaged", "trained"] | None = None,
    report: Callable[[int, int], None] = lambda read, total: None,
) -> Converted:
    """Denoise, copy or enhance a folder of recordings (wav, flac; any length) by a run of task `speech`, `vocoder` or
    `enhancer`.

    Files come out below `to`, a new or empty folder, under their names, with their rates, channels, lengths and
    formats. Those that cannot be read are named in the result. `report` is told how many frames have been read, of how
    many. Raises Failure: 64 where the run is of another task, 66 where run, commit or recordings are missing, 73 where
    `to` cannot be used, 74 where a file cannot be written.
    """
    from drivetrain.run.inference import infer_speech

    return infer_speech(Path(run), Path(source), Path(to), commit, weights, report)


def verify(
    run: str | Path,
    *,
    data: bool = True,
    told: Callable[[str, dict[str, Any]], None] = lambda part, so_far: None,
) -> dict[str, Any]:
    """Prove that a run did what its ledger says, and return what holds, as JSON data.

    Without `data` the sources are not read again. `told` is given each part once it holds (`chain`, `attempts`,
    `samples` ...), and what holds so far. Raises Failure with the first thing that does not hold: its code is
    74 for the ledger, 83 for a step that came to other numbers when it was made again, 86 for a commit, 65 otherwise.
    """
    from drivetrain.run.proof import prove

    return prove(Path(run), data=data, told=lambda part, so_far: told(part, so_far.to_json())).to_json()


def control(run: str | Path, *words: str, wait: float = 60.0) -> dict[str, Any]:
    """Tell a run that trains what to do, as `drivetrain control` does: `control(run, "set", "optimizer.lr=1e-4")`.

    Returns the ledger's record of it, with the `step` after which all its processes did it; with a `wait` of 0 only
    the command's `id`. Raises Failure: 64 for what is no command or is refused, 66 where nobody trains in `run`, 69
    where there is no answer in `wait` seconds.
    """
    from drivetrain.launch.inbox import tell
    from drivetrain.spec.commands import parse

    return tell(Path(run), parse(words), wait)


def diff(run: str | Path, other: str | Path | None = None, *, data: bool = True) -> dict[str, Any]:
    """What a run does not share with another one, or with what its command would train today, as plain data.

    `differences` are of part recipe, code, environment or data, each with `name`, `old`, `new`, whether it decides
    `bits`, and for code a unified `diff`; `unknown` is what could not be compared. Without `data` today's sources are
    not opened. Raises Failure: 66 where one is no run, 65 or 78 where a recipe cannot be read.
    """
    from drivetrain.run.difference import compared

    return compared(Path(run), Path(other) if other else None, data=data).to_json()


def report(run: str | Path) -> dict[str, Any]:
    """What a run came to, and where its time went, as plain data: steps, losses, metrics, attempts with how they ended,
    seconds by use, goodput, throughput, the slowest ranks, which code made which steps.

    Numbers may be NaN. Raises Failure: 66 where there is no run, 74 where its ledger is damaged.
    """
    from drivetrain.ledger.run_summary import summary_of
    from drivetrain.watch.report import summary

    return summary(Path(run), summary_of(Path(run)))


def compare(
    *runs: str | Path, by: Literal["step", "samples", "tokens", "seconds"] = "step", plot: str | Path | None = None
) -> dict[str, Any]:
    """Two runs or more side by side, as plain data: `recipe` (what differs, by dotted key), `metrics` (each run's
    newest, lowest and highest, and the better run where the recipes say what is good), `at_equal` (losses and metrics
    at the same places) and `runs` (their reports).

    `by` is what the places are told by; seconds are those of steps and their data, without starts, evaluations,
    commits, lost work and pauses. `plot` is a .png or .svg file to draw the curves in. Numbers may be NaN. Raises
    Failure: 64 for fewer than two runs, one twice, or tokens where a task counts none, 66 where one is no run.
    """
    from drivetrain.watch.compare import comparison, gather
    from drivetrain.watch.plot import draw, panels, require_plot

    if plot:
        require_plot(Path(plot))
    gathered = gather(runs, by)
    if plot:
        stories = {name: run.story for name, run in gathered.items()}
        draw(Path(plot), " and ".join(gathered), panels(stories, by))
    return comparison(gathered, by)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal is gone: the run is not
        print(f"drivetrain: {text}", file=sys.stderr, flush=True)
