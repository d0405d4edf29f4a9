"""TorchRec's sharded tables on the processes of a run of ours: by hand, and through its own pipeline."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

RowsAndLengths = tuple[Tensor, Tensor]
"""Ids, one table after the other, and how many of them each sample has, [tables, samples]."""


def available() -> bool:
    """Whether TorchRec and fbgemm can be had here."""
    try:
        import fbgemm_gpu  # noqa: F401
        import torchrec  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def step_of(
    kind: str, optimizer: str, shape: tuple[int, int, int], dense: nn.Module, batches: Sequence[dict[str, Any]]
) -> Callable[[int], None]:
    """A step of `kind`, "hand" or "pipeline", with tables whole on ranks in turn; `shape` is tables, rows, dim.

    Each of `batches` has `rows` (see RowsAndLengths), `numbers` and `labels`: this rank's share.
    """
    from torchrec import KeyedJaggedTensor
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    from torchrec.streamable import Pipelineable

    @dataclass
    class Batch(Pipelineable):
        """What the pipeline moves about."""

        ids: Any
        numbers: Tensor
        labels: Tensor

        def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
            return self

        def record_stream(self, stream: Any) -> None:
            """Nothing runs beside the host here."""

        def pin_memory(self) -> Batch:
            return self

    tables, _rows, dim = shape
    names = [f"f{number}" for number in range(tables)]
    whole = len(batches[0]["labels"]) * dist.get_world_size()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables, self.dense = _collection(shape), dense

        def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
            embedded = self.tables(batch.ids).values().view(-1, tables, dim)
            found = self.dense(batch.numbers, embedded)
            return F.binary_cross_entropy_with_logits(found, batch.labels, reduction="sum") / whole, found

    model = _sharded(Model(), optimizer, tables)
    own = torch.optim.Adam([value for name, value in model.named_parameters() if "dense" in name], fused=True)
    ready = []
    for batch in batches:
        ids, lengths = batch["rows"]
        ready.append(
            Batch(KeyedJaggedTensor.from_lengths_sync(names, ids, lengths.flatten()), batch["numbers"], batch["labels"])
        )
    if kind == "pipeline":
        pipeline = TrainPipelineSparseDist(model, own, torch.device("cpu"), execute_all_batches=True)
        endless = cycle(ready)
        return lambda _number: pipeline.progress(endless)

    def by_hand(number: int) -> None:
        own.zero_grad()
        model(ready[number])[0].backward()
        own.step()

    return by_hand


def _collection(shape: tuple[int, int, int]) -> nn.Module:
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

    configs = []
    for number in range(shape[0]):
        sizes = {"embedding_dim": shape[2], "num_embeddings": shape[1], "feature_names": [f"f{number}"]}
        configs.append(EmbeddingBagConfig(name=f"t{number}", **sizes))
    return EmbeddingBagCollection(device=torch.device("meta"), tables=configs)


def _sharded(model: nn.Module, optimizer: str, tables: int) -> nn.Module:
    """Its own engine around the model. The kernel is named: else the dense one is taken, which moves nothing."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel, comm_ops
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    comm_ops.set_gradient_division(False)
    moves = {"optimizer": getattr(EmbOptimType, f"EXACT_{optimizer.upper()}"), "learning_rate": 0.05, "eps": 1e-8}
    sharder = EmbeddingBagCollectionSharder(fused_params=moves)
    world = dist.get_world_size()
    places = {f"t{number}": table_wise(rank=number % world, compute_kernel="fused") for number in range(tables)}
    sizes = {"local_size": world, "world_size": world, "device_type": "cpu"}
    plan = construct_module_sharding_plan(model.tables, places, sharder=sharder, **sizes)
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"tables": plan}),
        sharders=[sharder],
        device=torch.device("cpu"),
    )
