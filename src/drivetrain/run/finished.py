"""What is done with a run from outside: it is scored and exported."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.commits import LoadedCommit, newest, pick
from drivetrain.checkpoint.compatible import accept_data
from drivetrain.checkpoint.export import export, require_empty, tied_names
from drivetrain.checkpoint.initial import load_initial
from drivetrain.checkpoint.mapped import MappedTensors
from drivetrain.checkpoint.recipe import Init, each_init
from drivetrain.checkpoint.state import AVERAGES, NETWORKS, averaged, require_fitting, restore
from drivetrain.data.column_files import common_nulls
from drivetrain.data.text_tokens import TextTokens, text_tokens
from drivetrain.engine.engine import Engine
from drivetrain.engine.execution import Execution
from drivetrain.engine.placement import Placement, replicas
from drivetrain.ledger.resume_index import history_of
from drivetrain.loop.evaluation import Evaluator, Scores, ValidationSet
from drivetrain.loop.step_sync import WIDTH, StepSync
from drivetrain.loop.task import Task
from drivetrain.run.build import (
    averages_of,
    build_networks,
    build_task,
    digests_beside,
    open_inputs,
)
from drivetrain.run.user_code import identity
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.box import Box
from drivetrain.spec.code.scan import UserCode, scan
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.secrets import require_no_secret
from drivetrain.tasks.language_model.task import LanguageModelTask
from drivetrain.tasks.ranking.task import RankingTask

Weights = Literal["averaged", "trained"]


class CodeChanged(UserWarning):
    """A commit is used by other code than it was made by."""


class TokenizerLeftOut(UserWarning):
    """A language model is exported without its tokenizer, which nobody knows."""


@dataclass(frozen=True)
class FinishedRun:
    """A run as of one of its commits, in this process: its networks lie on the device, with the weights to be used."""

    recipe: Recipe
    task: Task
    networks: dict[str, nn.Module]
    commit: LoadedCommit
    device: torch.device

    def engine(self, placement: Placement) -> Engine:
        """The networks as training evaluates them; nothing moves."""
        return Engine(self.networks, {}, Execution(placement, self.device, self.recipe.precision, self.recipe.seed))


def run_tokens(recipe: Recipe, task: LanguageModelTask) -> TextTokens:
    """How a language model's training data was tokenized. Raises Failure as `text_tokens`."""
    return text_tokens(recipe.data.train.sources, only_bytes=task.only_bytes)


def evaluate_run(
    run: Path, data: str | None, commit: str | None = None, samples: int | None = None, weights: Weights | None = None
) -> Scores:
    """Score a run's newest commit, or the named one, in this process.

    `data` is the name of a validation or test set, or validation (the default), test, all. `samples` is how many of
    each set's first samples are scored, None for all of them. `weights` are those that training has scored, if None.
    """
    finished = open_finished(run, commit, weights)
    recipe, found = finished.recipe, finished.commit
    inputs = open_inputs(recipe, run, finished.task)
    lanes = found.metadata["lanes"] if recipe.exact else 1  # exact: in the blocks, and so to the bits, of training
    sets = chosen(inputs.sets(recipe, lanes, samples), data)
    # Only of what is scored: other sources may have changed since.
    scored = {each.name for each in sets}
    digests: dict[str, str] = {}
    told = found.metadata["data"]
    for place, digest in digests_beside(told, inputs, recipe, run, finished.task).items():
        if place.rpartition(".")[2] in scored:
            digests[place] = digest
    accept_data(told, digests, (), found.path.name)
    return _scored(recipe, finished.task, finished.engine(replicas(Group())), sets, found.step)


def evaluate_recipe(recipe: Recipe, data: str | None, samples: int | None = None, init: str | None = None) -> Scores:
    """Score what a recipe begins with, in this process: nothing is trained and no run is made.

    `init` is where weights come from, as in a recipe's `init.from`; None: as the recipe's own `init` says. `data` and
    `samples` as for `evaluate_run`. Raises Failure: 64 where there are no weights to score, and what `load_initial`
    raises.
    """
    require_no_secret(init or "", "--init")
    given = [Init(from_=init)] if init else each_init(recipe.init)
    if not given:
        raise Failure(Exit.BAD_COMMAND, "the recipe has no init, so there are no weights to score", "name some: --init")
    device, task = _device(recipe), build_task(recipe)
    with tempfile.TemporaryDirectory() as nothing_kept:
        inputs = open_inputs(recipe, Path(nothing_kept), task)
    sets = chosen(inputs.sets(recipe, 1, samples), data)
    networks = build_networks(task, recipe, device)
    layouts = {name: task.published_layout(name) for name in networks}
    for settings in given:
        load_initial(settings, networks, layouts)
    execution = Execution(replicas(Group()), device, recipe.precision, recipe.seed)
    return _scored(recipe, task, Engine(networks, {}, execution), sets, 0)


def _scored(recipe: Recipe, task: Task, engine: Engine, sets: Sequence[ValidationSet], step: int) -> Scores:
    """Score sets in this process, as training would after this step."""
    group = Group()
    sync = StepSync(Pulse(group, WIDTH), StopRequests(), alone=True)  # nobody asks this process to stop
    return Evaluator(task, engine, group, replicas(group), sync, recipe.evaluate.metrics).score(sets, step)


def _device(recipe: Recipe, rank: int | None = None) -> torch.device:
    """The device that a recipe asks for, made ready for one process: the only one, or of several the one with this
    number, which computes as it would alone."""
    device = devices.choose(recipe.device, rank or 0)
    # Sums are cut by the number of threads, so a share of the cores for each would be other bits on other numbers.
    same = recipe.exact or rank is not None
    threads = devices.threads_per_process(1, recipe.launch.threads, exact=same)
    devices.configure_determinism(device, threads, recipe.matmul, exact=recipe.exact)
    return device


def export_run(run: Path, to: Path, commit: str | None = None, weights: Weights | None = None) -> list[Path]:
    """Write the networks of a run's newest commit, or of the named one, to a new folder, in the task's layout."""
    require_empty(to)
    mapped: list[MappedTensors] = []

    def read(found: LoadedCommit) -> dict[str, Tensor]:
        assert found.stored is not None, "it was looked for so"
        mapped.append(MappedTensors(found.stored, _is_of_network, to))
        return mapped[0].tensors

    finished = _opened(run, commit, weights, read=read)
    require_fitting(finished.commit.state.tensors, finished.networks)
    if isinstance(finished.task, LanguageModelTask):
        try:
            finished.task.text_tokens = run_tokens(finished.recipe, finished.task)
        except Failure as failure:
            text = f"the export has no tokenizer: {failure.outcome.cause}. Copy the one that made the tokens to {to}"
            warnings.warn(text, TokenizerLeftOut, stacklevel=3)
    if isinstance(finished.task, RankingTask):
        finished.task.nulls = common_nulls(finished.recipe.data.train.sources)
    layouts = {name: finished.task.layout(name) for name in finished.networks}
    tied = {name: tied_names(network) for name, network in finished.networks.items()}
    files = export(finished.commit, to, layouts, tied, mapped[0].forget)
    mapped[0].require_unchanged()
    return files


def open_finished(run: Path, commit: str | None, weights: Weights | None, *, rank: int | None = None) -> FinishedRun:
    """A run as of its newest commit, or of the named one; by default with the weights that training scores.

    `rank` is this process's number among those that share the work out, where it may be shared out.
    """
    finished = _opened(run, commit, weights, rank=rank)
    found = finished.commit
    restore(found.state.tensors, finished.networks, {})
    # The networks have them now.
    return replace(finished, commit=replace(found, state=replace(found.state, tensors={})))


def _read(found: LoadedCommit) -> dict[str, Tensor]:
    return found.read(lambda name, shape: Box.of_whole(shape) if _is_of_network(name) else None)


def _opened(
    run: Path,
    commit: str | None,
    weights: Weights | None,
    *,
    rank: int | None = None,
    read: Callable[[LoadedCommit], dict[str, Tensor]] = _read,
) -> FinishedRun:
    """The same, before the networks have the tensors that the commit holds: those of networks that are to be used, as
    `read` gives them."""
    if not run.exists():
        raise Failure(Exit.INPUT_MISSING, f"no run at {run}", "name a run directory")
    recipe = load(run).recipe
    device, task = _device(recipe, rank), build_task(recipe)
    found = newest(run, whole=False) if commit is None else pick(run, commit, whole=False)
    if found is None:
        raise Failure(Exit.INPUT_MISSING, f"no commit in {run}", "train it first")
    made_by = found.metadata.get("user_code", "")
    if made_by and _is_other_code(scan(recipe), made_by, run):
        text = f"{found.path.name} was made by other code than there is now: `drivetrain diff {run}` shows it"
        warnings.warn(text, CodeChanged, stacklevel=4)
    learned = found.metadata.get("task")
    if learned:  # before anything is built: networks may depend on what was found in the data
        task.recall(learned)
    networks = build_networks(task, recipe, device, drawn=False)
    tensors = read(found)
    scored = [name for name, settings in averages_of(recipe, networks).items() if settings.evaluate]
    if weights == "averaged" or (weights is None and scored):
        names = networks if weights else scored  # asked for: of all networks that have one
        tensors = averaged(tensors, names)
    found = replace(found, state=replace(found.state, tensors=tensors), stored=None)
    return FinishedRun(recipe, task, networks, found, device)


def _is_of_network(name: str) -> bool:
    """Whether a tensor is a network's or an average: not what moves them, which may be several times as much."""
    return name.partition("/")[0] in (NETWORKS, AVERAGES)


def _is_other_code(code: UserCode, made_by: str, run: Path) -> bool:
    """Whether today's code is another one than the one of a digest that a commit of the run has."""
    if code.digest == made_by:
        return False
    # What came late in the run may count in the digest, too.
    return identity(code, history_of(run)).digest != made_by


def chosen(sets: Mapping[str, list[ValidationSet]], data: str | None) -> list[ValidationSet]:
    """The sets that are meant: by name, or by what they are. Raises Failure(66) where there is none."""
    every = list(chain.from_iterable(sets.values()))
    meant = [each for each in every if each.name == data]
    if not meant and data == "all":
        meant = every
    elif not meant:
        meant = sets.get(data or "validation", [])
    if not meant:
        there = ", ".join(each.name for each in every) or "none"
        cause = f"no set {data!r} to score" if data else "no validation set to score"
        raise Failure(Exit.INPUT_MISSING, cause, f"the recipe has: {there}")
    return meant
