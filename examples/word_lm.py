"""An LSTM over words. Its state goes on from batch to batch, and is in every commit."""

import math
import re
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from drivetrain import Mean, Task
from synthetic import text


def words(sentences: int, seed: int) -> list[str]:
    return re.findall(r"\w+|[.,]|<eos>", text(sentences, seed).replace("\n", " <eos> "))


@cache
def vocabulary() -> list[str]:
    return ["<unk>", *sorted(set(words(5000, seed=0)))]


class Streams(Dataset):
    """A text in `streams` columns that are read side by side: in order, a batch goes on where the one before it ended.

    Sample i is the window i // streams of column i % streams: its words, int64 [context + 1], and if it is the first.
    """

    def __init__(self, sentences: int, streams: int, context: int, seed: int = 0):
        numbers = {word: number for number, word in enumerate(vocabulary())}
        codes = torch.tensor([numbers.get(word, 0) for word in words(sentences, seed)])
        self.columns = codes[: len(codes) // streams * streams].view(streams, -1)
        self.streams, self.context = streams, context

    def __len__(self):
        return (self.columns.shape[1] - 1) // self.context * self.streams

    def __getitem__(self, index):
        window, column = divmod(index, self.streams)
        start = window * self.context
        return {"words": self.columns[column, start : start + self.context + 1], "begins": window == 0}


class Model(nn.Module):
    """Logits [batch, length, words] of what follows each of the words [batch, length]."""

    state: Tensor

    def __init__(self, width: int, depth: int, dropout: float, streams: int):
        super().__init__()
        self.embedding = nn.Embedding(len(vocabulary()), width)
        self.lstm = nn.LSTM(width, width, depth, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, len(vocabulary()))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("state", torch.zeros(2, depth, streams, width))  # a buffer: commits have it
        for weight in (self.embedding.weight, self.head.weight):
            nn.init.uniform_(weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, codes: Tensor, begins: Tensor) -> Tensor:
        if self.training and len(codes) != self.state.shape[2]:
            raise ValueError("the state goes on from whole batch to whole batch: leave out batch.micro and processes")
        state = self.state[:, :, : len(codes)]
        hidden, cell = state * ~begins[:, None]  # a new object: what follows does not reach the batch before
        seen, after = self.lstm(self.dropout(self.embedding(codes)), (hidden, cell))
        state.copy_(torch.stack(after).detach())
        return self.head(self.dropout(seen))


class Perplexity(Mean):
    """A metric of one's own: the exponential of a mean."""

    def value(self) -> float:
        return math.exp(super().value())


class WordLM(Task):
    shown = 1

    def __init__(self, width: int, streams: int, depth: int = 2, dropout: float = 0.2):
        self.shape = (width, depth, dropout, streams)

    def networks(self):
        return {"model": Model(*self.shape)}

    def loss(self, nets, batch):
        codes = batch["words"]
        logits = nets["model"](codes[:, :-1], batch["begins"])
        return cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())

    def metrics(self):
        return {"loss": Mean(), "perplexity": Perplexity()}

    def evaluate(self, nets, batch, metrics):
        total, count = float(self.loss(nets, batch)) * len(batch["words"]), len(batch["words"])
        for metric in metrics.values():
            metric.add(total, count)

    def show(self, nets, batch, gallery):
        code, begins, found = batch["words"][:, :1], batch["begins"], []
        for _ in range(100):
            logits = nets["model"](code, begins)[:, -1]
            code, begins = torch.multinomial(torch.softmax(logits, dim=1), 1), torch.zeros_like(begins)
            found.append(vocabulary()[int(code)])
        gallery.text("made-up", " ".join(found).replace("<eos> ", "\n"))
