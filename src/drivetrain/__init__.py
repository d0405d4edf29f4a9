"""Drivetrain trains PyTorch models: one recipe, the same bits after any stop, a ledger that proves it.

For a task of your own: `Task`, `Losses`, `Mean`, `Metric`; with tables `Embeddings`, `Table`, `Lookup`, `Ids`, and for
keyed ones `Keyed`, `Admit`, `Evict`, `Amount`; on many processes `ParallelPlan`, `Positions`, `Dropout`, `once`,
`added`. To run one from Python: `train`, `evaluate`, `predict`, `generate`, `export`, `report`, `compare`, `diff`;
`board` shows live curves in a notebook.
Everything is imported when it is first used, so that `import drivetrain` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain.api import Result as Result
    from drivetrain.api import compare as compare
    from drivetrain.api import control as control
    from drivetrain.api import diff as diff
    from drivetrain.api import evaluate as evaluate
    from drivetrain.api import export as export
    from drivetrain.api import generate as generate
    from drivetrain.api import infer_speech as infer_speech
    from drivetrain.api import predict as predict
    from drivetrain.api import report as report
    from drivetrain.api import train as train
    from drivetrain.api import verify as verify
    from drivetrain.board.notebook import board as board
    from drivetrain.engine.context import Positions as Positions
    from drivetrain.engine.dropout import Dropout as Dropout
    from drivetrain.engine.losses import Losses as Losses
    from drivetrain.engine.parallel_plan import ParallelPlan as ParallelPlan
    from drivetrain.engine.tables.keyed_recipe import Admit as Admit
    from drivetrain.engine.tables.keyed_recipe import Evict as Evict
    from drivetrain.engine.tables.keyed_recipe import Keyed as Keyed
    from drivetrain.engine.tables.module import Embeddings as Embeddings
    from drivetrain.engine.tables.module import Ids as Ids
    from drivetrain.engine.tables.module import Lookup as Lookup
    from drivetrain.engine.tables.module import Table as Table
    from drivetrain.loop.metrics import Mean as Mean
    from drivetrain.loop.metrics import Metric as Metric
    from drivetrain.loop.task import Task as Task
    from drivetrain.runtime.together import added as added
    from drivetrain.runtime.together import once as once
    from drivetrain.spec.amount import Amount as Amount
    from drivetrain.spec.exits import Exit as Exit
    from drivetrain.spec.exits import Failure as Failure

__version__ = "0.1.0"

_HOMES = {
    "Result": "drivetrain.api",
    "compare": "drivetrain.api",
    "control": "drivetrain.api",
    "diff": "drivetrain.api",
    "evaluate": "drivetrain.api",
    "export": "drivetrain.api",
    "generate": "drivetrain.api",
    "infer_speech": "drivetrain.api",
    "predict": "drivetrain.api",
    "report": "drivetrain.api",
    "train": "drivetrain.api",
    "verify": "drivetrain.api",
    "board": "drivetrain.board.notebook",
    "Positions": "drivetrain.engine.context",
    "Dropout": "drivetrain.engine.dropout",
    "Losses": "drivetrain.engine.losses",
    "ParallelPlan": "drivetrain.engine.parallel_plan",
    "Admit": "drivetrain.engine.tables.keyed_recipe",
    "Evict": "drivetrain.engine.tables.keyed_recipe",
    "Keyed": "drivetrain.engine.tables.keyed_recipe",
    "Embeddings": "drivetrain.engine.tables.module",
    "Ids": "drivetrain.engine.tables.module",
    "Lookup": "drivetrain.engine.tables.module",
    "Table": "drivetrain.engine.tables.module",
    "Mean": "drivetrain.loop.metrics",
    "Metric": "drivetrain.loop.metrics",
    "Task": "drivetrain.loop.task",
    "added": "drivetrain.runtime.together",
    "once": "drivetrain.runtime.together",
    "Amount": "drivetrain.spec.amount",
    "Exit": "drivetrain.spec.exits",
    "Failure": "drivetrain.spec.exits",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'drivetrain' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    # To import what is below `board` has put that room under this name, where it can be called all the same.
    return globals().get(name, found)


def __dir__() -> list[str]:
    return sorted(__all__)
