"""One start of a run, on one rank, in three stages: its inputs are opened, its state is restored, its loop is built.

Each stage is a frozen value that the next one reads; what must be closed again is on one stack.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from drivetrain.launch.job import Job
from drivetrain.launch.rundir import ANSWER
from drivetrain.run.context import AttemptContext, StartupTimes
from drivetrain.run.dry_run import dry_run
from drivetrain.run.ending import failure_of, internal, run_loop
from drivetrain.run.opened import open_run
from drivetrain.run.restored import restore_run
from drivetrain.run.resume import Resumer
from drivetrain.run.wiring import build_loop
from drivetrain.runtime import device as devices
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.mesh import Mesh
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.runtime.together import standing
from drivetrain.spec.code.scan import scan
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import within, write_private
from drivetrain.spec.load import Resolved, load
from drivetrain.spec.mesh import MeshSizes
from drivetrain.spec.recipe import Recipe


def execute(
    job: Job,
    place: Place,
    listen_fd: int | None = None,
    heartbeat: Heartbeat | None = None,
    resolved: Resolved | None = None,
) -> Outcome:
    """Run one rank of a job to its end. Whatever happens comes back as an outcome, never as an exception.

    `listen_fd` is rank 0's socket for the rendezvous, if it has one already; `resolved` the job's recipe, where this
    process has checked it already.
    """
    # Handlers first: a request to stop was blocked over the fork, and is heard from here on.
    with StopRequests() as stops:
        try:
            return _run(job, place, stops, listen_fd, heartbeat or Heartbeat(), resolved)
        except Failure as failure:
            return _told(failure, Path(job.folder) / "logs", place)
        except BaseException as error:  # also what a library means to end the process by
            failure = internal(error, place)
            failure.__cause__ = error
            return _told(failure, Path(job.folder) / "logs", place)


def _told(failure: Failure, logs: Path, place: Place) -> Outcome:
    """Print what there is to say before the last line, and keep the whole traceback where there is one."""
    outcome = replace(failure.outcome, raised=failure.__cause__)
    if place.world > 1:
        outcome = replace(outcome, where={"rank": place.rank} | outcome.where)
    if failure.details:
        print(failure.details, file=sys.stderr, flush=True)
    if not failure.trace:
        return outcome
    kept = logs / f"traceback-{place.rank}.txt"
    try:
        within(ANSWER, lambda: write_private(kept, f"{failure.trace.rstrip()}\n".encode(errors="replace")))
    except OSError:  # the disk is full or gone
        print(failure.trace, file=sys.stderr, flush=True)
        return outcome
    return replace(outcome, hint=f"{outcome.hint}; the whole traceback is in {kept}")


def _run(
    job: Job, place: Place, stops: StopRequests, listen_fd: int | None, heartbeat: Heartbeat, resolved: Resolved | None
) -> Outcome:
    """From joining the other ranks to the attempt's last record."""
    if resolved is None:
        modules = Path(job.modules) if job.modules else None
        resolved = load(job.recipe, folder=modules, origins=job.origins)
    recipe, startup = resolved.recipe, StartupTimes(job.started)
    device = devices.choose(recipe.device, place.local_rank)
    threads = devices.threads_per_process(place.local_world, recipe.launch.threads, exact=recipe.exact)
    devices.configure_determinism(device, threads, recipe.matmul, exact=recipe.exact)
    loaded, code = frozenset(sys.modules), scan(recipe)
    environment = devices.environment(code.installed | recipe.embeddings.packages)
    context = AttemptContext(job, resolved, place, stops, heartbeat, environment, code, loaded, startup)
    resumer = Resumer(job, recipe)
    startup.lap("import")
    group = Group.join(place, device, listen_fd=listen_fd)
    try:
        with _as_failure(context, group):
            mesh = Mesh(group, _sizes(recipe, group.world), device, **recipe.parallel.stages)
            with ExitStack() as stack:
                stack.enter_context(standing(mesh, first_here=place.local_rank == 0))
                opened = open_run(context, mesh, resumer)
                restored = restore_run(opened, stack)
                loop = build_loop(opened, restored, stack)
                stack.callback(heartbeat.enter, "teardown")  # first of all that is undone: it may take long
                with _as_failure(context, group):  # here the phase is still the one in which it was raised
                    outcome = dry_run(loop, opened) if job.most_steps == 0 else run_loop(loop, context)
            # Only in peace: after the loss of a peer it may wait for those that are left.
            group.close()
            return outcome
    finally:
        heartbeat.enter("teardown")
        resumer.release()


def _sizes(recipe: Recipe, processes: int) -> MeshSizes:
    """How the processes are laid out. Raises Failure(78) where a launcher has started others than the recipe has."""
    try:
        return recipe.parallel.sizes(processes)
    except ValueError as error:
        hint = "start as many, or change parallel"
        raise Failure(Exit.BAD_RECIPE, f"parallel: {error}", hint) from error


@contextmanager
def _as_failure(context: AttemptContext, group: Group) -> Generator[None]:
    """Raise the failure that an exception stands for, with the phase that the heartbeat is in."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        raise failure_of(error, context, group) from error
