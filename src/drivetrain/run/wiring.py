"""The loop, made of a recipe, of what an attempt has opened, and of the state that it goes on from."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from drivetrain.checkpoint.commits import Committer
from drivetrain.checkpoint.manifest import name_of
from drivetrain.checkpoint.recipe import Checkpoint
from drivetrain.checkpoint.retention import Retention, pin
from drivetrain.checkpoint.survivors import RECORDS
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.buckets import reading_order
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Sampler
from drivetrain.data.orders import stage_of
from drivetrain.data.prefetch import BatchIterator, prefetch
from drivetrain.data.quarantine import Quarantine
from drivetrain.launch.inbox import Inbox, WatchedInbox
from drivetrain.loop.callbacks import Callbacks
from drivetrain.loop.checks import StepChecks
from drivetrain.loop.commands import Commands
from drivetrain.loop.commits import Commits, CommitStorage
from drivetrain.loop.compilations import Compilations
from drivetrain.loop.control import ANSWER, CommandHistory, Control
from drivetrain.loop.due import DueWork
from drivetrain.loop.evaluation import Evaluator
from drivetrain.loop.guard import Guard, Undone
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.loop import Loop
from drivetrain.loop.observe import build_observer
from drivetrain.loop.reader import Reader
from drivetrain.loop.recipe import Guard as GuardSettings
from drivetrain.loop.records import StepRecords
from drivetrain.loop.replicas import Replicas
from drivetrain.loop.rollback import Judge, Rewind
from drivetrain.loop.rollback_buffer import RollbackBuffer
from drivetrain.loop.scoring import ScoredBefore, ScoredSets, Scoring
from drivetrain.loop.showing import Showing
from drivetrain.loop.state import CommitMetadata, RunState
from drivetrain.loop.step_runner import StepRunner
from drivetrain.loop.step_sync import WIDTH, StepSync
from drivetrain.loop.stopping import PlannedStops, deadline
from drivetrain.loop.telemetry import Meter
from drivetrain.loop.training_scores import TrainingScores
from drivetrain.loop.tuning import Tuning, settings_digest
from drivetrain.run.build import deciding_metrics, most_scored, require_scores, shown_samples
from drivetrain.run.opened import OpenedRun
from drivetrain.run.opening import keep_suspects, record_attempt
from drivetrain.run.plan_request import plan_beside
from drivetrain.run.restored import RestoredRun
from drivetrain.run.streams import resumed
from drivetrain.run.user_code import LateCode
from drivetrain.runtime.compiling import watch_compiler
from drivetrain.runtime.group import Group
from drivetrain.runtime.pulse import Pulse
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Compile


def build_loop(opened: OpenedRun, restored: RestoredRun, stack: ExitStack) -> Loop:
    """The third stage of a start: the loop, with every part given what it reads, and the attempt in the ledger.

    `stack` ends what commits.
    """
    context, group, engine, task = opened.context, opened.group, restored.engine, opened.task
    recipe, placement, timetable = context.recipe, engine.placement, restored.timetable
    ledger, guard = _ledger_writer(opened, restored, stack), _guard(opened, restored)
    inbox = _inbox(context.folder, stack) if group.leader else None  # one rank hears commands, and tells the others
    control = Control(inbox, group, ledger, _command_history(opened, restored))
    sync = _sync(opened, restored, control)
    evaluator = Evaluator(task, engine, group, placement, sync, recipe.evaluate.metrics)
    scoring = _scoring(opened, restored, evaluator, ledger)
    showing = _showing(opened, restored, evaluator, ledger)
    reader = _reader(opened, restored, guard, sync)
    state = RunState(engine, placement, guard, restored.values, reader.streams)
    _begin(opened, restored, ledger, reader)
    storage = _storage(opened, restored, stack)
    meter = Meter(recipe.telemetry, timetable, group, engine, ledger, plan_beside(opened, restored, ledger))
    observer = build_observer(recipe, meter, group, engine, ledger, context.folder)
    checks = StepChecks(recipe.statistics, recipe.guard.recompute, timetable, engine, group, ledger)
    scores = TrainingScores(recipe.evaluate.training, evaluator, timetable, state, ledger)
    records = StepRecords(state, ledger, sync, Judge(state, group, ledger, reader))
    commits = Commits(state, ledger, sync, _metadata(opened, restored, ledger), reader.coverage, storage)
    sync.part_ended = lambda: commits.part_ended
    _go_on(commits, restored, state)
    rewind = _rewind(recipe.guard, state, ledger)
    tuning = Tuning(restored.live, timetable, restored.horizon, engine, reader)
    commands = Commands(control, tuning, observer, rewind, scoring, partial(_pin, context.folder, storage))
    replicas = Replicas(engine, opened.unlike)
    blocking, work = recipe.checkpoint.blocking, (records, commits, scoring, showing, commands, rewind, replicas)
    due = DueWork(state, *work, reader, ledger, sync, group, blocking)
    return Loop(
        state=state,
        reader=reader,
        runner=StepRunner(task, engine, guard, checks, reader, scores),
        records=records,
        commits=commits,
        scoring=scoring,
        commands=commands,
        due=due,
        rewind=rewind,
        replicas=replicas,
        observer=observer,
        ledger=ledger,
        sync=sync,
        group=group,
        stops=PlannedStops(recipe.stop.at, state.progress.step, context.job.most_steps),
    )


def _go_on(commits: Commits, restored: RestoredRun, state: RunState) -> None:
    """Tell that the step is committed. What survivors left was in memory alone: no commit covers its step."""
    if restored.commit is not None and not restored.commit.volatile:
        commits.resume(state.progress.step)


def _begin(opened: OpenedRun, restored: RestoredRun, ledger: LedgerWriter, reader: Reader) -> None:
    """What the folder and the ledger have of an attempt before its first step."""
    keep_suspects(opened.context, opened.group, reader.batches.order, restored.timetable)
    if opened.group.leader:
        opened.resumer.keep_recipe(opened.context.environment)
    record_attempt(opened, restored, ledger, reader)


def _rewind(settings: GuardSettings, state: RunState, ledger: LedgerWriter) -> Rewind:
    """The way back, with a buffer where a step may be undone."""
    buffer = RollbackBuffer(settings.rollback) if settings.undoes else None
    return Rewind(state, ledger, buffer)


def _inbox(folder: Path, stack: ExitStack) -> WatchedInbox:
    inbox = WatchedInbox(Inbox(folder))
    stack.callback(inbox.close, ANSWER)
    return inbox


def _sync(opened: OpenedRun, restored: RestoredRun, control: Control) -> StepSync:
    """What tells all ranks of a step. The leader's clock alone decides a deadline: machines' clocks may differ."""
    context, group = opened.context, opened.group
    sync = StepSync(
        Pulse(group, WIDTH),
        context.stops,
        alone=group.world == 1,
        speaks=opened.mesh.speaks,
        commanded=control.waiting,
    )
    if group.leader:
        first = restored.history.began or context.job.started
        until = deadline(context.recipe.stop, first, context.job.started, os.environ)
        if until is not None:
            sync.deadline = until
    return sync


def _ledger_writer(opened: OpenedRun, restored: RestoredRun, stack: ExitStack) -> LedgerWriter:
    """The attempt's writer; steps that survivors have made and nobody wrote are in the ledger before anything else."""
    startup, history, commit = opened.context.startup, restored.history, restored.commit
    recipe, leader = opened.context.recipe, opened.group.leader
    heartbeat = opened.context.heartbeat
    callbacks = Callbacks(recipe.callbacks, restored.engine.networks, leader=leader, heartbeat=heartbeat)
    attempt = opened.group.broadcast_json(1 + history.attempts)
    ledger = LedgerWriter(restored.ledger_queue, attempt, startup.watch, history, heartbeat, callbacks)
    compiler, networks = watch_compiler(heartbeat, stack), restored.engine.networks
    made = Compilations(networks, (recipe.compiled or Compile()).recompiles)
    ledger.compiling, ledger.compilations = compiler.seconds, lambda: made.records(compiler.found())
    ledger.seconds["start"] = sum(startup.seconds.values())
    if commit and commit.volatile:
        ledger.complete(commit.state.values[RECORDS], history.last_step, history.attempts)
    return ledger


def _guard(opened: OpenedRun, restored: RestoredRun) -> Guard:
    recipe = opened.context.recipe
    undone = opened.group.broadcast_json(restored.history.undone)  # only the leader has read the ledger
    known = [Undone(step, to, tuple(samples)) for step, to, samples in undone]
    return Guard(recipe.guard, restored.values.guard, recipe.scaling.least, known)


def _command_history(opened: OpenedRun, restored: RestoredRun) -> CommandHistory:
    history = restored.history
    return CommandHistory(
        known=[*history.commands, *history.refused],
        replayed=restored.commands.replayed,
        begin=restored.values.progress.step,
        pending=opened.group.broadcast_json(history.pending_command),
        settings=settings_digest(opened.context.recipe),
    )


def _reader(opened: OpenedRun, restored: RestoredRun, guard: Guard, sync: StepSync) -> Reader:
    """What reads the training data, in the order that the recipe and what was set have given it."""
    recipe, inputs, task, data = opened.context.recipe, opened.inputs, opened.task, opened.mesh.data
    train, timetable = recipe.data.train, restored.timetable
    names = list(inputs.train)
    stages = [stage_of(stage) for stage in restored.commands.stages]
    source, order = reading_order(train, inputs.train, recipe.seed, timetable.scale, restored.lanes, stages)
    geometry = Geometry(timetable.scale.batches, restored.lanes, data.world, recipe.batch.micro, apart=recipe.exact)
    quarantine = _quarantine(guard, order)
    even = not opened.mesh.replicated
    tables = restored.engine.placement.tables
    arrange = partial(tables.arrange, task.lookups) if tables else None
    batches = BatchReader(
        source, order, geometry, data.rank, timetable.total, task.collate, task.counts, quarantine, even, arrange
    )

    def open_iterator(batches: BatchReader, first: int) -> BatchIterator:
        return prefetch(batches, first, timetable.steps, train.prefetch, train.workers)

    announce = (lambda ahead: tables.announce(ahead.rows)) if tables else None
    return Reader(batches, sync, names, open_iterator, resumed(opened, restored, batches), announce)


def _scoring(opened: OpenedRun, restored: RestoredRun, evaluator: Evaluator, ledger: LedgerWriter) -> Scoring:
    """What scores, with what the ledger has of earlier scores."""
    context, group, history = opened.context, opened.group, restored.history
    recipe, inputs, step = context.recipe, opened.inputs, restored.values.progress.step
    patience = recipe.stop.patience
    lanes = restored.lanes if recipe.exact else opened.mesh.data.world
    sets = ScoredSets(
        validation=inputs.sets(recipe, lanes, most_scored(recipe))["validation"], finals=inputs.finals(recipe, lanes)
    )
    # Where there are test sets alone, what they are scored by is tried now, too, and not after the last step.
    require_scores(recipe, opened.task, evaluator, sets.validation or sets.finals.get("test", ()))
    scoring = Scoring(evaluator, ledger, sets, patience, deciding_metrics(recipe), restored.horizon.scores)
    _fill(restored, group)
    past = history.scores(patience.metric) if patience else {}
    # The leader's, as it alone has read the ledger. Scores of steps that are made again do not count.
    finals = group.broadcast_json(history.finals.get(step, {}))
    evaluated = group.broadcast_json(history.evaluated(step))
    scores = group.broadcast_json([past[at] for at in sorted(past) if at <= step])
    scoring.resume(ScoredBefore(evaluated, scores, finals), step)
    return scoring


def _fill(restored: RestoredRun, group: Group) -> None:
    """Every rank follows the scores that count, and the leader alone has read the ledger."""
    step = restored.values.progress.step
    scored = [(at, metrics) for at, metrics in sorted(restored.history.evaluations.items()) if at <= step]
    for at, metrics in group.broadcast_json(scored):
        restored.horizon.scores.add(at, metrics)


def _showing(opened: OpenedRun, restored: RestoredRun, evaluator: Evaluator, ledger: LedgerWriter) -> Showing:
    """What shows samples, with what the ledger has of earlier times."""
    recipe, group = opened.context.recipe, opened.group
    lanes = restored.lanes if recipe.exact else opened.mesh.data.world
    samples = shown_samples(recipe, opened.task, opened.inputs, lanes)
    run = opened.context.folder if group.leader else None
    showing = Showing(evaluator, ledger, samples, recipe.evaluate.show, run)
    # The leader's, as it alone has read the ledger; of steps that are made again nothing counts.
    showing.resume(group.broadcast_json([at for at in restored.history.shown if at <= restored.values.progress.step]))
    return showing


def _metadata(opened: OpenedRun, restored: RestoredRun, ledger: LedgerWriter) -> CommitMetadata:
    context, commit = opened.context, restored.commit
    return CommitMetadata(
        recipe=bits_digest(context.recipe),
        data=opened.inputs.digests,
        environment=context.environment,
        parent=commit.path.name if commit else None,
        lanes=restored.lanes,
        task=dict(opened.task.learned),
        attempt=ledger.attempt,
        user_code=restored.code.digest,
    )


def _storage(opened: OpenedRun, restored: RestoredRun, stack: ExitStack) -> CommitStorage | None:
    """What commits: on the rank that keeps the ledger, or where tensors are cut, on every rank what it holds."""
    queue, in_parts = restored.ledger_queue, not restored.engine.placement.replicated
    if queue is None and not in_parts:
        return None
    settings, scores = opened.context.recipe.checkpoint, restored.history.scores
    best = settings.keep_best
    late_code = LateCode(opened.context.folder, opened.context.code, opened.context.loaded_before)

    def before_commit() -> None:
        """On the thread that commits."""
        if queue is not None:
            late_code.look()
            queue.sync()

    committer = Committer(
        run=opened.context.folder,
        lease=opened.resumer.lease,
        retention=_retention(settings, restored.timetable.scale),
        before=before_commit,
        scores=lambda: scores(best.metric) if best else {},
        heartbeat=opened.context.heartbeat,
        blocking=settings.blocking,
        patience=opened.resumer.patience,
        rank=opened.group.rank,
        in_parts=in_parts,
    )
    stack.enter_context(closing(committer))
    place = (opened.group.rank, opened.group.world) if in_parts else (0, 1)
    if queue is None:
        return CommitStorage(committer, opened.resumer.mirror(restored.commit, lambda: None, place))
    return CommitStorage(committer, opened.resumer.mirror(restored.commit, queue.sync, place), late_code.records)


def _pin(folder: Path, storage: CommitStorage | None, step: int) -> None:
    """Keep the commit of a step for good, on the rank that commits."""
    if storage:
        pin(folder, name_of(step))


def _quarantine(guard: Guard, order: Sampler) -> Quarantine:
    """The samples that are left out; Failure(78) where the recipe names one that is not there."""
    strange = [sample for sample in guard.settings.quarantine if sample >= order.size]
    if strange:
        cause = f"guard.quarantine: there is no sample {strange[0]}, they are 0 to {order.size - 1}"
        raise Failure(Exit.BAD_RECIPE, cause, "give ids as the ledger tells them")
    return guard.quarantine


def _retention(settings: Checkpoint, scale: Scale) -> Retention:
    retention = Retention(last=settings.keep)
    if settings.keep_every:
        retention = replace(retention, every=partial(settings.keep_every.multiples, scale=scale))
    best = settings.keep_best
    if best:
        retention = replace(retention, best=best.count, sign=-1 if best.mode == "max" else 1)
    return retention
