"""The second stage of a start: networks, optimizers and the ledger, in the state that the attempt goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from torch import Tensor, nn

from drivetrain.checkpoint.commits import LoadedCommit
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import Placement
from drivetrain.engine.tables.build import begin_masters
from drivetrain.engine.tables.state import begin_keys
from drivetrain.ledger.queue import LedgerQueue
from drivetrain.ledger.records import InitialRecord
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.loop.progress import Timetable
from drivetrain.loop.replicas import require_same_start
from drivetrain.loop.state import StateValues
from drivetrain.loop.task import Task
from drivetrain.loop.telemetry import host_memory
from drivetrain.loop.tuning import LiveRecipe, optimizers_of, settings_digest
from drivetrain.optim.schedules import Horizon
from drivetrain.run.build import (
    Inputs,
    build_engine,
    build_on_mesh,
    digests_beside,
    execution_of,
    first_lanes,
    freeze_networks,
    masters_for,
    run_scale,
    with_rows,
)
from drivetrain.run.commands import ReplayedCommands, commands_to_replay
from drivetrain.run.opened import OpenedRun
from drivetrain.run.replay import Replay, replayed
from drivetrain.run.user_code import CodeIdentity, accept, changes, identity, recorded
from drivetrain.spec.affects import bits_digest, reads_scores
from drivetrain.spec.box import Box
from drivetrain.spec.code.scan import files_today
from drivetrain.spec.recipe import Recipe

WHOLE = "each process has built the networks whole, and kept its part: the task does not build them on the meta device"


@dataclass(frozen=True)
class RestoredRun:
    """The state that an attempt goes on from, and what the ledger says of the attempts before.

    `ledger_queue` is open on the rank that keeps the ledger; on the others `history` is empty. `commit` is where the
    state comes from, None at the start of a run, `initial` tells of weights that were loaded there. `code` is the
    user's own code; its digest is "" where there is none. `replay` is the run whose commands are done again, known on
    the leader.
    """

    ledger_queue: LedgerQueue | None
    history: ResumeIndex
    commit: LoadedCommit | None
    code: CodeIdentity
    replay: Replay | None
    commands: ReplayedCommands
    live: LiveRecipe
    timetable: Timetable
    horizon: Horizon
    engine: Engine
    values: StateValues
    lanes: int
    initial: list[InitialRecord]


def restore_run(opened: OpenedRun, stack: ExitStack) -> RestoredRun:
    """Build what trains, and put the newest commit's state in place. Every rank calls it; `stack` closes the ledger.

    Raises Failure: 76 where a commit does not fit, 86 where none verifies, and what building raises.
    """
    context, group, resumer, recipe = opened.context, opened.group, opened.resumer, opened.context.recipe
    history = ResumeIndex()
    ledger_queue = None
    if group.leader:
        ledger_queue = stack.enter_context(closing(resumer.open_ledger(history)))
    commit = resumer.find(group, history, whole=opened.mesh.replicated and not _shares_rows(opened))
    code = _code_identity(opened, history, commit)
    context.startup.lap("find")
    context.startup.resident = host_memory()["resident"]
    # After the code is known to be the commit's: other code may make networks of which nothing can be restored.
    networks, placement = build_on_mesh(opened.task, recipe, opened.mesh, drawn=commit is None)
    if not opened.mesh.replicated and not opened.task.build_on_meta:
        resumer.notes.append(WHOLE)
    context.startup.lap("build")
    replay, own = None, None
    if group.leader:
        replay = _replay(opened, history)
        own = _commands(opened, history, commit, replay).to_json()
    # Only the leader has a ledger; the live recipe follows from it, and must be the same on all ranks.
    commands = ReplayedCommands.from_json(group.broadcast_json(own))
    live = LiveRecipe(context.resolved, commands.texts)
    lanes = _lanes(recipe, opened.mesh.data.world, commit)
    timetable = _timetable(recipe, live.recipe, opened.inputs, lanes)
    placement = replace(placement, masters=masters_for(recipe, networks, placement))
    initial = _initialize(opened, networks, placement, fresh=commit is None)
    horizon = Horizon(timetable.total, timetable.scale)
    optimizers = optimizers_of(live.recipe, networks, horizon, placement)
    # After the weights are there: what an optimizer keeps may begin at them.
    optimizers = with_rows(live.recipe, optimizers, placement, horizon)
    placement = placement.knowing({name: each.optimizer for name, each in optimizers.items()})
    execution = execution_of(recipe, placement, opened.device, lanes)
    engine = build_engine(recipe, networks, optimizers, execution, context.heartbeat)
    values = StateValues()
    if commit:
        # Read only now: which boxes this rank holds is known once networks and optimizers are laid out.
        commit = replace(commit, state=replace(commit.state, tensors=commit.read(placement.box)))
        kept = commit.metadata["data"]
        digests = digests_beside(kept, opened.inputs, recipe, context.folder, opened.task)
        values = resumer.restore(commit, digests, context.environment, engine, timetable)
    # Ranks that hold the same parts and start unequal would never become equal.
    require_same_start(engine)
    context.startup.lap("load")
    return RestoredRun(
        ledger_queue, history, commit, code, replay, commands, live, timetable, horizon, engine, values, lanes, initial
    )


def _shares_rows(opened: OpenedRun) -> bool:
    """Whether ranks may hold different rows of tables. It is asked before there are networks, so the task tells."""
    return opened.group.world > 1 and type(opened.task).lookups is not Task.lookups


def _initialize(
    opened: OpenedRun, networks: Mapping[str, nn.Module], placement: Placement, *, fresh: bool
) -> list[InitialRecord]:
    """Weights at the start of the run, and what of them does not train."""
    masters = placement.masters
    moved: dict[str, Tensor] = dict(masters.moved) if masters else {}
    if masters and masters.lasting and placement.tables and fresh:
        moved |= begin_masters(placement.tables)
    layouts = {name: opened.task.published_layout(name) for name in networks}
    rows: dict[str, Box | None] = {name: held.box for name, held in placement.rows.items()}
    # Named all the same: a pattern of `init` that fits another rank's tables alone is no mistake here.
    rows |= dict.fromkeys(placement.elsewhere)
    initial = opened.resumer.initialize(networks, layouts, opened.group, fresh=fresh, masters=moved, rows=rows)
    if initial and placement.tables:
        begin_keys(placement.tables)
    freeze_networks(opened.context.recipe, networks, placement.tables)
    if masters:
        masters.forget_still()
    return initial


def _code_identity(opened: OpenedRun, history: ResumeIndex, commit: LoadedCommit | None) -> CodeIdentity:
    """Which of the user's code this attempt claims; the ledger's keeper knows what came late before, the other ranks
    know the digest.

    Raises Failure(76) there where the commit was made by other code.
    """
    context, today = opened.context, CodeIdentity("")
    if opened.group.leader:
        today = identity(context.code, history)
        if commit:
            opened.resumer.notes += accept(commit, history, context.code, today, context.job.override, context.folder)
    return replace(today, digest=opened.group.broadcast_json(today.digest))


def _replay(opened: OpenedRun, history: ResumeIndex) -> Replay | None:
    """The run that this one makes again, if it does; only the ledger's keeper knows."""
    context, job = opened.context, opened.context.job
    before = history.newest.replay if history.newest else None  # a run that was begun as a replay stays one
    found = replayed(context.folder, job.replay, before, bits_digest(context.recipe), anew=not job.restarts)
    opened.resumer.notes += found.notes if found else []
    if found and found.files is not None:
        today = files_today(context.code, found.late_places)
        changed = changes(found.files, recorded(today))
        if changed:
            names = ", ".join(map(str, changed))
            opened.resumer.notes.append(f"{found.run} is made again with other code than it had: {names}")
    return found


def _commands(
    opened: OpenedRun, history: ResumeIndex, commit: LoadedCommit | None, replay: Replay | None
) -> ReplayedCommands:
    """What the run was told before this attempt; what becomes of it is noted."""
    notes = opened.resumer.notes
    step = commit.step if commit else 0
    commands = commands_to_replay(
        history,
        step,
        settings_digest(opened.context.recipe),
        committed=opened.resumer.committed(commit),
        replay=replay.commands if replay else None,
    )
    if history.pending_command:
        notes.append(f"it was cut off after it was told to {history.pending_command}: that still counts")
    if commands.dropped:
        texts = "; ".join(f"{record.verb} {record.argument}" for record in commands.dropped)
        notes.append(f"the recipe has changed, so this no longer counts: {texts}")
    return commands


def _timetable(recipe: Recipe, tuned: Recipe, inputs: Inputs, lanes: int) -> Timetable:
    """When a run ends, evaluates and commits; `tuned` is the recipe with what was set while it trained."""
    scale = run_scale(recipe, inputs.train, lanes)
    total = recipe.budget.samples_at(scale)
    return Timetable(
        total=total,
        steps=scale.batches.steps(total),
        scale=scale,
        evaluate_every=tuned.evaluate.every,
        commit_every=tuned.checkpoint.every,
        commit_evaluated=recipe.checkpoint.keep_best is not None,
        scores_every=reads_scores(tuned),
    )


def _lanes(recipe: Recipe, world: int, commit: LoadedCommit | None) -> int:
    """The recipe's lanes; `auto` are those of the commit to go on from, or at the first start what fits."""
    if recipe.lanes == "auto" and commit:
        return commit.metadata["lanes"]
    return first_lanes(recipe, world)
