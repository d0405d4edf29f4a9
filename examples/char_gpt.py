"""A character-level GPT: the networks, the data, the loss, and some text to look at."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import Dataset

from drivetrain import Mean, Task
from synthetic import text

VOCABULARY = 128  # a character is its ASCII code


class Characters(Dataset):
    """Windows of a text, int64 [context + 1]: one begins at every character, or at each `stride`-th."""

    def __init__(self, sentences: int, context: int, seed: int = 0, stride: int = 1):
        self.codes = torch.tensor(list(text(sentences, seed).encode()))
        self.context, self.stride = context, stride

    def __len__(self):
        return (len(self.codes) - self.context - 1) // self.stride + 1

    def __getitem__(self, index):
        start = index * self.stride
        return self.codes[start : start + self.context + 1]


class Block(nn.Module):
    """Attention, then an MLP, each after a norm and around a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm, self.norm_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention, self.mix = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.grow, self.shrink = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        split = self.attention(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = scaled_dot_product_attention(*split, dropout_p=rate, is_causal=True)
        x = x + self.dropout(self.mix(seen.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.shrink(nn.functional.gelu(self.grow(self.norm_mlp(x)))))


class GPT(nn.Module):
    """Logits [batch, length, VOCABULARY] of what follows each of the characters [batch, length]."""

    def __init__(self, width: int, depth: int, heads: int, context: int, dropout: float):
        super().__init__()
        self.characters, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("mix.weight", "shrink.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * depth) ** 0.5 if residual else 0.02)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.characters(codes) + self.places.weight[: codes.shape[1]]
        return self.norm(self.blocks(self.dropout(x))) @ self.characters.weight.T


class CharGPT(Task):
    shown = 1  # prompts that `show` gets

    def __init__(self, context: int, width: int, depth: int, heads: int, dropout: float = 0.0):
        self.context = context
        self.shape = (width, depth, heads, context, dropout)

    def networks(self):
        return {"model": GPT(*self.shape)}

    def loss(self, nets, batch):
        return cross_entropy(nets["model"](batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def metrics(self):
        return {"loss": Mean(), "bits_per_character": Mean(scale=1 / math.log(2))}

    def evaluate(self, nets, batch, metrics):
        total = float(self.loss(nets, batch)) * len(batch)
        for metric in metrics.values():
            metric.add(total, len(batch))

    def show(self, nets, batch, gallery):
        codes = batch[:, :8]  # a validation text's first characters; the rest is made up
        for _ in range(400):
            logits = nets["model"](codes[:, -self.context :])[:, -1]
            codes = torch.cat([codes, torch.multinomial(torch.softmax(logits, dim=1), 1)], dim=1)
        gallery.text("made-up", "".join(map(chr, codes[0].tolist())))
