"""What every system trains here, and how it is watched: the same network, samples, optimizer and schedule.

An adapter is told by its environment where checkpoints go (CONFORMANCE_RUN), where the witness writes
(CONFORMANCE_WITNESS), how long a step rests (CONFORMANCE_PAUSE, seconds) and which sample is not a number
(CONFORMANCE_NAN). The witness file is outside the run, so a disk that is full or damaged never touches it.
"""

import hashlib
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SEED, STEPS, EVERY, BATCH, EPOCHS = 7, 60, 10, 16, 2
STEPS_PER_EPOCH = STEPS // EPOCHS
SAMPLES = STEPS_PER_EPOCH * BATCH
WIDTH, HIDDEN, CLASSES = 64, 768, 10
RATE = 1e-3
RUN = Path(os.environ.get("CONFORMANCE_RUN", "run"))


class Witness:
    """Appends to a plain file what this process has seen: its start, the samples of each forward pass, each step."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["CONFORMANCE_WITNESS"])
        self.pause = float(os.environ.get("CONFORMANCE_PAUSE", "0.02"))
        self.file = os.open(self.folder / "witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.started = False

    def saw(self, ids: torch.Tensor) -> None:
        """The samples of one forward pass of training: int64 [samples]."""
        self._write("saw", *ids.tolist())

    def step(self, number: int) -> None:
        """The optimizer has moved for the `number`-th time (from 1) by the system's own count."""
        self._write("step", number)
        time.sleep(self.pause)

    def done(self, model: nn.Module) -> None:
        """The final weights: their SHA-256, and whether all are finite."""
        digest, finite = hashlib.sha256(), True
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
            finite &= bool(value.isfinite().all())
        if _rank() == 0:
            final = {"sha256": digest.hexdigest(), "finite": finite}
            (self.folder / "final.json").write_text(json.dumps(final))

    def _write(self, what: str, *values: object) -> None:
        if not self.started:
            self.started = True
            self._write("start")
        line = " ".join(map(str, (os.getpid(), _rank(), what, *values))) + "\n"
        os.write(self.file, line.encode())  # one write to a file opened for appending is not torn by other processes


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Samples(torch.utils.data.Dataset):
    """Random vectors by index, the same whoever asks."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict:
        index = int(index)
        features = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        if str(index) == os.environ.get("CONFORMANCE_NAN"):
            features[0] = float("nan")
        return {"ids": index, "features": features, "labels": index % CLASSES}


class Model(nn.Module):
    """An MLP with dropout that returns its loss, and tells the witness what it is trained on."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness
        sizes = [WIDTH, HIDDEN, HIDDEN]
        layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.GELU(), nn.Dropout(0.1))]
        self.layers = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))

    def forward(self, ids: torch.Tensor, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """ids, labels: int64 [samples]; features: float32 [samples, WIDTH]. The mean cross-entropy as `loss`."""
        if self.training:
            self.witness.saw(ids)
        return {"loss": nn.functional.cross_entropy(self.layers(features), labels)}


def optimizer_for(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def schedule_for(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
