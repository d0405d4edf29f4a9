"""What survivors leave when a peer dies: the state of the boundary they stand at, in memory, for the next start.

No collective runs inside a replicated optimizer step, so a survivor holds the weights of a whole step. It is written
in the form of a commit and verified like one, to a folder that only this supervisor knows; nothing is made durable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.checkpoint.commit import StateTree, values_file, write_manifest, write_parts
from drivetrain.checkpoint.files import discard, make_folder, require_space
from drivetrain.checkpoint.manifest import MANIFEST, name_of, step_of
from drivetrain.checkpoint.snapshot import pieces_of

RECORDS, OWED = "records", "owed"


def save_survivor_state(
    folder: Path,
    rank: int,
    step: int,
    state: StateTree,
    metadata: Mapping[str, Any],
) -> None:
    """Leave the state of `step` in `folder`, unless another survivor has left one as high.

    Its values have the newest steps' ledger records at `RECORDS`, since whoever keeps the ledger may have died before
    it wrote them, and at `OWED` what else the ledger must have, by kind and step. Raises OSError where the memory does
    not suffice.
    """
    highest = 0
    for name in os.listdir(folder):
        if (folder / name / MANIFEST).is_file():  # others are not whole, or are still being written
            highest = max(highest, step_of(name.partition(".")[0]) or 0)
    if highest >= step:
        return
    temporary = folder / f".tmp-{rank}"
    discard(temporary)
    pieces = pieces_of(state.tensors)
    require_space(folder, sum(piece.data.numel() for piece in pieces) + (1 << 20), 8)
    make_folder(temporary)
    files = write_parts(temporary, pieces, values_file(state.values), threads=1)
    write_manifest(temporary, step, files, {**metadata, "volatile": True})
    os.rename(temporary, folder / f"{name_of(step)}.rank-{rank}")
