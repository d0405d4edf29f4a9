"""What a rank leaves when a peer has died: the state of the boundary that it stands at."""

from __future__ import annotations

from pathlib import Path

from drivetrain.checkpoint import survivors
from drivetrain.checkpoint.commit import StateTree
from drivetrain.ledger.records import EvaluationRecord
from drivetrain.loop.loop import Loop


def save_survivor_state(loop: Loop, folder: Path) -> None:
    """Leave the state of the boundary that this rank stands at in `folder`, for the next start.

    Nothing is left where it stands within a step that has changed something, where it holds what another rank's commit
    would not, or where another has left as much. Raises OSError where the memory does not suffice.
    """
    open_step, runner = loop.runner.open, loop.runner
    within = open_step is not None and not runner.updated
    if not loop.replicas.stands_for_all(within=within):
        return
    loop.state.engine.heartbeat.enter("handover")
    if open_step is not None and runner.updated:
        # All ranks have moved, and nobody could say so: the digest of the samples is computed here instead of heard.
        samples = loop.reader.batches.samples(open_step.batch.step).digest
        loop.records.add(runner.close_step(), samples, 0.0, 0.0)
    loop.records.drain()
    if loop.records.bad:  # the way back would be told to the ledger first, and takes all ranks
        return
    step, metadata = loop.step, loop.commits.metadata.to_json()
    # An evaluation of this very step is none of it: the next start scores it again.
    owed = [(kind, at) for kind, at in loop.ledger.owed if (kind, at) != (EvaluationRecord.kind, step)]
    told = {survivors.RECORDS: loop.ledger.recent, survivors.OWED: owed}
    # This rank stands for all, so it writes every tensor, though another one would write them into a commit.
    state = StateTree(loop.state.tensors, loop.state.values.to_json() | told)
    survivors.save_survivor_state(folder, loop.group.rank, step, state, metadata)
