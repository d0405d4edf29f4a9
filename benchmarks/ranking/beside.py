"""A task whose every step begins with the same step of others, on the same batch."""

import json
import os
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchrec_peer
from torch import nn

from drivetrain import Task
from drivetrain.engine.tables.module import Embeddings, Ids, Lookup, Table

ASKED = json.loads(os.environ["RANKING_BENCHMARK"])
TABLES, ROWS, DIM = (ASKED[name] for name in ("tables", "rows", "dim"))
BATCH = ASKED["batch"] // ASKED["processes"]  # the share of each process
MADE = 12  # batches, over and over
DENSE = 13
NAMES = [f"t{number}" for number in range(TABLES)]


class Clicks:
    """So many samples; what they are `Batches` has."""

    def __len__(self):
        return MADE * BATCH

    def __getitem__(self, index):
        return index


class Batches:
    """Those that are there already: ids [samples, 3] of each table, numbers and labels."""

    thread_safe = True
    fingerprint = "made"

    def __init__(self):
        self.batches = [made(number) for number in range(MADE)]

    def __len__(self):
        return MADE * BATCH

    def read(self, ids, positions):
        return self.batches[int(ids[0]) // BATCH % MADE]


class Ready(list):
    """A batch as it will be collated."""

    def __init__(self, batch):
        super().__init__([None] * BATCH)
        self.batch = batch


def made(seed: int) -> Ready:
    draw = torch.Generator().manual_seed(seed)
    ids = (torch.rand(TABLES, BATCH, 3, generator=draw) ** ASKED["skew"] * ROWS).long().clamp(max=ROWS - 1)
    lengths = torch.randint(1, 4, (TABLES, BATCH), generator=draw)
    ids[torch.arange(3) >= lengths.unsqueeze(-1)] = -1
    numbers = torch.randn(BATCH, DENSE, generator=draw)
    labels = (torch.rand(BATCH, generator=draw) < 0.3).float()
    return Ready({"labels": labels, "numbers": numbers, **dict(zip(NAMES, ids, strict=True))})


class Dense(nn.Module):
    """The sum of pairwise products, and a small network."""

    def __init__(self):
        super().__init__()
        self.bottom = nn.Linear(DENSE, DIM)
        self.top = nn.Sequential(
            nn.Linear((TABLES + 1) * DIM, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, numbers, embedded):
        whole = torch.cat([self.bottom(numbers).unsqueeze(1), embedded], 1)
        pairs = 0.5 * (whole.sum(1).square() - whole.square().sum(1)).sum(1, keepdim=True)
        return (self.top(whole.flatten(1)) + pairs).squeeze(1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        tables = [Table(name, ROWS, DIM) for name in NAMES]
        self.embeddings = Embeddings(tables, [Lookup(name, name) for name in NAMES])
        self.dense = Dense()

    def forward(self, batch):
        found = self.embeddings({name: batch[name] for name in NAMES})
        return self.dense(batch["numbers"], torch.stack([found[name] for name in NAMES], 1))


class Beside(Task):
    """Ours, with the others in turn."""

    def __init__(self):
        self.told: dict[str, list[float]] = {}
        self.peers = {"dense": only_dense()} if ASKED["peers"] else {}
        for name in ASKED["peers"]:
            if step := peer(name):
                self.peers[name] = step
        self.began = 0.0

    def prepare(self, source, part, *, by_length=False):
        return Batches()

    def networks(self):
        return {"model": Network()}

    def collate(self, samples):
        return samples.batch

    def lookups(self, batch):
        return {"model": Ids({name: batch[name] for name in NAMES})}

    def update(self, step):
        now = time.perf_counter()
        if step.index > 1:
            self.told.setdefault("ours", []).append(now - self.began)
        for name, work in self.peers.items():
            began = time.perf_counter()
            work((step.index - 1) % MADE)
            self.told.setdefault(name, []).append(time.perf_counter() - began)
        if step.index == ASKED["steps"]:
            tell(self.told)
        self.began = time.perf_counter()
        super().update(step)

    def loss(self, nets, batch):
        return F.binary_cross_entropy_with_logits(nets["model"](batch), batch["labels"])


def tell(times):
    """One rank tells the times, since they step together; each tells the most memory that it had, in kB."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    folder = Path(ASKED["folder"])
    if rank == 0:
        (folder / "told.json").write_text(json.dumps(times))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (folder / f"memory-{rank}.json").write_text(json.dumps(peak))


def flat(batch):
    """Each table's ids and the offsets of its bags."""
    found = []
    for name in NAMES:
        ids = batch[name]
        there = ids >= 0
        lengths = there.sum(1)
        found.append((ids[there], torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])))
    return found


def dense_part():
    torch.manual_seed(0)
    dense = Dense()
    return dense, torch.optim.Adam(dense.parameters(), fused=True)


def only_dense():
    dense, optimizer = dense_part()
    batches = [made(number).batch for number in range(MADE)]
    embedded = torch.randn(BATCH, TABLES, DIM, requires_grad=True)

    def step(number):
        batch = batches[number]
        loss = F.binary_cross_entropy_with_logits(dense(batch["numbers"], embedded), batch["labels"])
        optimizer.zero_grad()
        embedded.grad = None
        loss.backward()
        optimizer.step()

    return step


def peer(name: str):
    kind, *_, optimizer = name.split(" ")
    if kind == "torchrec":
        return torchrec(name.split(" ")[1], optimizer)
    return plain(optimizer) if kind == "plain" else fbgemm(optimizer)


def torchrec(kind: str, optimizer: str):
    """TorchRec's sharded tables, on the same ranks; None where it is not installed."""
    if not torchrec_peer.available():
        return None
    batches = []
    for number in range(MADE):
        batch = made(number).batch
        whole = torch.stack([batch[name] for name in NAMES])
        batches.append(batch | {"rows": (whole[whole >= 0], (whole >= 0).sum(2))})
    torch.manual_seed(0)
    return torchrec_peer.step_of(kind, optimizer, (TABLES, ROWS, DIM), Dense(), batches)


def plain(kind: str):
    """Torch's layers with sparse gradients, ids ready as these take them."""
    bags = nn.ModuleList([nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in NAMES])
    dense, own = dense_part()
    makes = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    rows = makes[kind](list(bags.parameters()), lr=0.05)
    batches = [made(number).batch for number in range(MADE)]
    ready = [flat(batch) for batch in batches]

    def step(number):
        batch = batches[number]
        found = [bag(ids, offsets) for bag, (ids, offsets) in zip(bags, ready[number], strict=True)]
        loss = F.binary_cross_entropy_with_logits(dense(batch["numbers"], torch.stack(found, 1)), batch["labels"])
        own.zero_grad()
        rows.zero_grad()
        loss.backward()
        own.step()
        rows.step()

    return step


def fbgemm(kind: str):
    """Its kernels, which move rows within the backward pass; None where it is not installed."""
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except (ImportError, OSError):
        return None
    kinds = {"sgd": "EXACT_SGD", "adagrad": "EXACT_ADAGRAD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)] * TABLES,
        optimizer=getattr(EmbOptimType, kinds[kind]),
        learning_rate=0.05,
        eps=1e-8,
    )
    dense, own = dense_part()
    batches = [made(number).batch for number in range(MADE)]
    ready = []
    for batch in batches:
        parts = flat(batch)
        ids = torch.cat([part for part, _ in parts])
        bounds, at = [], 0
        for part, offsets in parts:
            bounds.append(offsets + at)
            at += len(part)
        ready.append((ids, torch.cat([*bounds, torch.tensor([at])])))

    def step(number):
        batch = batches[number]
        embedded = tables(*ready[number]).view(BATCH, TABLES, DIM)
        loss = F.binary_cross_entropy_with_logits(dense(batch["numbers"], embedded), batch["labels"])
        own.zero_grad()
        loss.backward()
        own.step()

    return step
