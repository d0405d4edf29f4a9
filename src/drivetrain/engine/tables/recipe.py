"""Settings of embedding tables: what moves their rows, and who holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from drivetrain.optim.recipe.rows import AnyRowOptimizer, RowwiseAdagradRows
from drivetrain.optim.recipe.schedules import AnySchedule
from drivetrain.spec.settings import Pattern, Settings, bits, cost


@dataclass(frozen=True, kw_only=True)
class TableGroup(Settings):
    """Tables chosen by a regular expression, with an optimizer of their own. The first group that matches takes one."""

    match: Annotated[Pattern, bits("regular expression, searched in the table's name")]
    optimizer: Annotated[AnyRowOptimizer, bits("what moves the rows of these tables")]
    schedule: Annotated[AnySchedule | None, bits("learning-rate schedule; that of `embeddings` where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Embeddings(Settings):
    """The tables of networks that have some (`drivetrain.Embeddings`); others take no notice of it."""

    backend: Annotated[
        Literal["own", "torchrec"],
        bits("who looks rows up and moves them: drivetrain, or TorchRec with the kernels of fbgemm", later=True),
    ] = "own"
    optimizer: Annotated[AnyRowOptimizer, bits("what moves the rows that a step has looked up", later=True)] = field(
        default_factory=RowwiseAdagradRows
    )
    schedule: Annotated[
        AnySchedule | None, bits("learning-rate schedule of rows; the network's where absent", later=True)
    ] = None
    groups: Annotated[tuple[TableGroup, ...], bits("tables with an optimizer of their own", later=True)] = ()
    hold: Annotated[
        Mapping[Pattern, Literal["auto", "table", "row", "each"]],
        cost("by pattern of tables: whole by one process, by rows by all, whole by each, or as it suits", later=True),
    ] = field(default_factory=dict)

    @property
    def packages(self) -> frozenset[str]:
        """The top-level modules, beside torch's, whose versions decide bits."""
        return frozenset({"torchrec", "fbgemm_gpu"} if self.backend == "torchrec" else ())
