"""Tables of one width as fbgemm and TorchRec have them: memory, lookups, and the pass back that moves rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.tables.layout import Layout, Stretch
from drivetrain.engine.tables.module import Lookup
from drivetrain.engine.tables.torchrec.library import quiet
from drivetrain.optim.recipe.rows import AdagradRows, RowOptimizer, RowwiseAdagradRows
from drivetrain.spec.exits import Exit, Failure

_KERNELS = "fbgemm_gpu.split_table_batched_embeddings_ops_training"


class Bags(NamedTuple):
    """What one rank looks up: its bags, lookup after lookup and sample after sample.

    `ids` int64 [all], rows of their own tables; `lengths` int64 [lookups x samples]; `scales` float32 [all], or None
    where all are 1.
    """

    ids: Tensor
    lengths: Tensor
    scales: Tensor | None
    samples: int


class Collection:
    """The rows that are here and what looks up those of all ranks. Every rank calls it, and passes back, alike.

    `weight` float32 [rows here, dim] and `sums` ([rows here] or [rows here, dim], by the name of the optimizer's slot)
    are the kernel's own memory.
    """

    def __init__(self, layout: Layout, lookups: Sequence[Lookup], optimizer: RowOptimizer, group: Any) -> None:
        """`lookups` are in the order of the layout's tables; `group` is torch's, None where this process is alone."""
        dim = layout.tables[0].dim
        self._keys = _keys(lookups)
        self._sharded: Any = None
        with quiet():
            if group is None:
                self._kernel = _kernel(layout, lookups, optimizer)
            else:
                self._sharded = _sharded(layout, lookups, optimizer, group)
                self._kernel = _kernel_of(self._sharded, layout.of(dist.get_rank(group)))
        if self._kernel is None:
            self.weight = torch.empty(0, dim)
        else:
            self.weight = self._kernel.weights_host.detach().view(-1, dim)
        self.sums = self._slots(optimizer, dim)

    def __call__(self, bags: Bags) -> Tensor:
        """The sums of bags, float32 [samples, lookups x dim], with the graph by which `pass_back` moves rows."""
        return self._shared(bags) if self._sharded else self._alone(bags)

    def pass_back(self, found: Tensor, gradient: Tensor) -> None:
        """Move rows of all ranks by the gradient of what was `found`."""
        with _summed() if self._sharded else nullcontext():
            torch.autograd.backward(found, gradient)

    def set_rate(self, rate: float) -> None:
        """The learning rate of what is looked up from now on, when it is passed back."""
        if self._kernel is not None:
            self._kernel.set_learning_rate(rate)

    def _alone(self, bags: Bags) -> Tensor:
        offsets = torch.zeros(len(bags.lengths) + 1, dtype=torch.int64)
        torch.cumsum(bags.lengths, 0, out=offsets[1:])
        assert self._kernel is not None
        return self._kernel(bags.ids, offsets, bags.scales)

    def _shared(self, bags: Bags) -> Tensor:
        asked = import_module("torchrec").KeyedJaggedTensor(
            self._keys, bags.ids, weights=bags.scales, lengths=bags.lengths, stride=bags.samples
        )
        with _summed():
            return self._sharded(asked).wait().values()

    def _slots(self, optimizer: RowOptimizer, dim: int) -> dict[str, Tensor]:
        """The optimizer's state, by the names that our own optimizers of rows have for it."""
        if not isinstance(optimizer, AdagradRows | RowwiseAdagradRows):
            return {}
        shape = (-1, dim) if isinstance(optimizer, AdagradRows) else (-1,)
        if self._kernel is None:
            return {"sum": torch.empty(0, *shape[1:])}
        return {"sum": self._kernel.momentum1_host.detach().view(shape).fill_(optimizer.initial)}


def _fused(optimizer: RowOptimizer) -> dict[str, Any]:
    """fbgemm's arguments for what moves rows."""
    kinds = import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
    found = {"optimizer": getattr(kinds, optimizer.fused), "learning_rate": optimizer.lr}
    if isinstance(optimizer, AdagradRows | RowwiseAdagradRows):
        found["eps"] = optimizer.eps
    # Ids were looked at when they were planned: fbgemm makes row 0 of one that is none.
    return found | {"bounds_check_mode": import_module(_KERNELS).BoundsCheckMode.NONE}


def _kernel(layout: Layout, lookups: Sequence[Lookup], optimizer: RowOptimizer) -> Any:
    """fbgemm's kernel with all tables of a layout: what a process needs that is alone."""
    kernels = import_module(_KERNELS)
    places = [table.name for table in layout.tables]
    feature_tables = [places.index(lookup.table) for lookup in lookups]
    where = kernels.EmbeddingLocation.HOST, kernels.ComputeDevice.CPU
    return kernels.SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, *where) for table in layout.tables],
        feature_table_map=feature_tables,
        device=torch.device("cpu"),
        **_fused(optimizer),
    )


def _sharded(layout: Layout, lookups: Sequence[Lookup], optimizer: RowOptimizer, group: Any) -> Any:
    """TorchRec's collection of a layout's tables, which are where the layout has them: all by rows, or all whole."""
    torchrec, plans = import_module("torchrec"), import_module("torchrec.distributed.sharding_plan")

    class Sharder(import_module("torchrec.distributed.embeddingbag").EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return super().sharding_types("cuda")  # it has rows on the CPU, too, and does not say so

    keys, owners = _keys(lookups), {stretch.table: stretch.owner for stretch in layout.stretches}
    by_rows = len(layout.stretches) > len(layout.tables)
    configs, places = [], {}
    for number, table in enumerate(layout.tables):
        own = [key for key, lookup in zip(keys, lookups, strict=True) if lookup.table == table.name]
        shape = {"embedding_dim": table.dim, "num_embeddings": table.rows}
        configs.append(torchrec.EmbeddingBagConfig(name=f"t{number}", feature_names=own, **shape))
        # The kernel is named: else it is the dense one, which never moves a row.
        place = plans.row_wise if by_rows else plans.table_wise
        where = {} if by_rows else {"rank": owners[table.name]}
        places[f"t{number}"] = place(compute_kernel="fused", **where)
    bags = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=configs)
    sharder = Sharder(fused_params=_fused(optimizer))
    world = dist.get_world_size(group)
    sizes = {"local_size": world, "world_size": world, "device_type": "cpu"}
    plan = plans.construct_module_sharding_plan(bags, places, sharder=sharder, **sizes)
    environment = import_module("torchrec.distributed.types").ShardingEnv.from_process_group(group)
    return sharder.shard(bags, plan, environment, torch.device("cpu"))


def _kernel_of(sharded: Any, here: Sequence[Stretch]) -> Any:
    """The one kernel with this rank's rows; None where it has none. Raises Failure(70) where it has others."""
    (lookup,) = sharded._lookups
    kernels = list(lookup._emb_modules)
    held = [rows for kernel in kernels for rows in kernel._local_rows if rows]
    if len(kernels) > 1 or held != [stretch.rows for stretch in here]:
        raise Failure(Exit.INTERNAL, f"TorchRec holds {held} rows where {list(here)} were planned", "report it")
    return kernels[0].emb_module if kernels else None


def _keys(lookups: Sequence[Lookup]) -> list[str]:
    """What TorchRec calls the features: names of the user's own could have a meaning there."""
    return [f"f{number}" for number in range(len(lookups))]


@contextmanager
def _summed() -> Iterator[None]:
    """While entered, TorchRec adds gradients of ranks up, and does not take their mean."""
    comm_ops = import_module("torchrec.distributed.comm_ops")
    before = comm_ops.get_gradient_division()
    comm_ops.set_gradient_division(False)
    try:
        yield
    finally:
        comm_ops.set_gradient_division(before)
