"""A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, no biases (arXiv 2302.13971)."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.engine.context import WHOLE
from drivetrain.engine.dropout import Dropout
from drivetrain.engine.parallel_plan import ParallelPlan, Split
from drivetrain.spec.mesh import MeshSizes
from drivetrain.tasks.language_model import recipe
from drivetrain.tasks.language_model.document_blocks import Blocks, attend_in_blocks, blocks_of
from drivetrain.tasks.language_model.experts import Experts
from drivetrain.tasks.language_model.linear_cross_entropy import linear_cross_entropy

PLAN = ParallelPlan(
    units=("layers.*",),
    split={
        "embed": "embedding",
        "layers.*.attention_norm": "sequence",
        "layers.*.attention": "gather",
        "layers.*.attention.query": "column",
        "layers.*.attention.key": "column",
        "layers.*.attention.value": "column",
        "layers.*.attention.out": "row",
        "layers.*.mlp_norm": "sequence",
        "layers.*.mlp": "gather",
        "layers.*.mlp.gate": "column",
        "layers.*.mlp.up": "column",
        "layers.*.mlp.down": "row",
        "layers.*.dropout": "sequence",
        "norm": "sequence",
        "head": "head",
    },
    stages=("embed", "layers.*", "norm", "head"),
    context=("layers.*.attention",),
    sliced={"tokens": 1, "targets": 1},
)
"""How the decoder is laid out over a mesh."""


def plan_of(settings: recipe.Llama) -> ParallelPlan:
    """The same; of one with experts, which has no stages: these pass on a single tensor, and keep no buffers."""
    if settings.experts is None:
        return PLAN
    split: dict[str, Split] = dict(PLAN.split)
    for name in PLAN.split:
        if name.startswith("layers.*.mlp") and "norm" not in name:
            del split[name]
    mlp: dict[str, Split] = {}
    for name, kind in PLAN.split.items():
        if name not in split:
            mlp[name.removeprefix("layers.*.mlp")] = kind
    for number in range(settings.depth):
        path = f"layers.{number}.mlp"
        if number < settings.experts.dense:
            for part, kind in mlp.items():
                split[f"{path}{part}"] = kind
            continue
        split[path] = "experts"
        if settings.experts.shared:
            split |= {f"{path}.shared.gate": "column", f"{path}.shared.up": "column", f"{path}.shared.down": "summand"}
    return replace(PLAN, split=split, stages=())


Allowed = Tensor | Blocks | tuple[Tensor, ...] | None
"""Who sees whom: a mask (bool [batch, 1, positions, positions]), documents in batches, masks of the positions here
(`Positions.masks`), or all that is before."""


class Llama(nn.Module):
    """Token ids [batch, positions] (int64) to logits [batch, positions, vocabulary].

    `documents` [batch, positions] (int64) keeps attention within documents: numbers that neighbours of one document
    have in common, negative where padded.
    """

    laid_out = MeshSizes()
    """How it lies on a mesh; whoever lays it out says so."""
    positions = WHOLE
    """Which ones of a sample it is given: of tokens and targets. Documents are those of all."""

    def __init__(self, settings: recipe.Llama) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Embedding(settings.vocabulary, settings.width)
        self.layers = nn.ModuleList(Layer(settings, number) for number in range(settings.depth))
        self.norm = nn.RMSNorm(settings.width, eps=settings.norm_eps)
        self.head = Head(settings.width, settings.vocabulary, bias=False)
        if settings.tied:
            self.head.weight = self.embed.weight
        # Not persistent: they follow from the settings, and commits need not keep them.
        places = (settings.context, settings.width // settings.heads)
        self.cos = nn.Buffer(torch.empty(places), persistent=False)
        self.sin = nn.Buffer(torch.empty(places), persistent=False)
        if not self.cos.is_meta:
            self._fill_all()

    def forward(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        targets: Tensor | None = None,
        past: Past | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits for the token after each position. With a `past`, tokens are those after it, and become part of it.

        With `targets` [batch, positions] (int64) not logits, which are then never there whole, but their cross entropy
        in nats, summed, 0-d. In training a model with experts says beside either how uneven they are: `Routed.balance`,
        the mean over layers.
        """
        cos, sin, allowed = self._reach(tokens.shape[1], documents, past.length if past else 0)
        x, balance = self.embed(tokens), []
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin, allowed, past.layers[number] if past else None)
            if isinstance(x, tuple):
                x, uneven = x
                balance.append(uneven)
        result = self.head(self.norm(x), targets=targets)
        return (result, torch.stack(balance).mean()) if balance and self.training else result

    def _reach(self, length: int, documents: Tensor | None, begin: int) -> tuple[Tensor, Tensor, Allowed]:
        """Cosines and sines of so many positions from `begin` on, or of those here, and whom they see."""
        if self.positions.on:
            here = self.positions.here(length, self.cos.device)
            seen = self.positions.causal(length, self.cos.device) if documents is None else within(documents, here)
            cos, sin = self._rotary(here if documents is None else positions_within(documents)[:, here])
            return cos, sin, self.positions.masks(seen, cos.dtype)
        if documents is None:
            return self.cos[begin : begin + length], self.sin[begin : begin + length], None
        return *self._rotary(positions_within(documents)), _apart(documents)

    def _rotary(self, places: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos[places], self.sin[places]
        return (cos.unsqueeze(1), sin.unsqueeze(1)) if places.ndim > 1 else (cos, sin)

    @torch.no_grad()
    def fill(self, name: str, tensor: Tensor) -> None:
        """Initial numbers of one tensor: norms are 1, matrices normal with 0.02; a layer's last matrices 1 / sqrt(2
        depth) of that, so that the residual sum stays even."""
        if name.endswith(("router.counts", "router.bias")):
            tensor.zero_()
        elif name in ("cos", "sin"):
            settings = self.settings
            cos, sin = rotary_table(settings.context, settings.width // settings.heads, settings.rope_base)
            tensor.copy_(cos if name == "cos" else sin)
        elif tensor.ndim < 2:
            tensor.fill_(1.0)
        else:
            std = 0.02
            if re.search(r"(attention\.out\.weight|mlp\.(shared\.)?down(\.weight)?)$", name):
                std /= math.sqrt(2 * self.settings.depth)
            tensor.normal_(std=std)

    def _fill_all(self) -> None:
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            self.fill(name, tensor)


class Head(nn.Linear):
    """Logits of the features of positions, or their cross entropy."""

    chunk: int | Literal["auto"] = "auto"
    """Positions whose logits are there at a time, where their cross entropy is asked for."""

    def forward(self, input: Tensor, targets: Tensor | None = None) -> Tensor:
        """[..., width] to logits [..., vocabulary]; with `targets` [...] as in `Llama.forward`."""
        if targets is None:
            return super().forward(input)
        return linear_cross_entropy(input, self.weight, targets, self.chunk)


class Past:
    """Keys and values of the tokens that a decoder of this depth has read, so that the next one asks only for its own.

    After the first tokens, which may be many, come single ones.
    """

    def __init__(self, depth: int) -> None:
        self.layers = [LayerPast() for _ in range(depth)]

    @property
    def length(self) -> int:
        """How many tokens."""
        seen = self.layers[0].seen
        return seen[0].shape[2] if seen else 0


class LayerPast:
    """One layer's keys and values, [batch, heads, positions, size] each."""

    def __init__(self) -> None:
        self.seen: tuple[Tensor, Tensor] | None = None

    def with_next(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All of them, these included."""
        if self.seen:
            assert key.shape[2] == 1, "more than one would need a mask of who sees whom"
            key, value = torch.cat((self.seen[0], key), dim=2), torch.cat((self.seen[1], value), dim=2)
        self.seen = key, value
        return self.seen


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, settings: recipe.Llama, number: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(settings.width, eps=settings.norm_eps)
        self.attention = Attention(settings)
        self.mlp_norm = nn.RMSNorm(settings.width, eps=settings.norm_eps)
        self.mlp = _mlp(settings, number)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, allowed: Allowed = None, past: LayerPast | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[batch, positions, width] to the same shape; with experts, their `balance` beside it."""
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin, allowed, past))
        made = self.mlp(self.mlp_norm(x))
        if isinstance(made, tuple):
            return x + self.dropout(made[0]), made[1]
        return x + self.dropout(made)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; several heads may share a key and value head."""

    positions = WHOLE

    def __init__(self, settings: recipe.Llama) -> None:
        super().__init__()
        kv_heads = settings.kv_heads or settings.heads
        self.size = settings.width // settings.heads
        self.grouped = kv_heads != settings.heads
        self.query = nn.Linear(settings.width, settings.heads * self.size, bias=False)
        self.key = nn.Linear(settings.width, kv_heads * self.size, bias=False)
        self.value = nn.Linear(settings.width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(settings.width, settings.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, allowed: Allowed = None, past: LayerPast | None = None
    ) -> Tensor:
        """[batch, positions, width] to the same shape. `allowed` says who sees whom; without it, all before it."""
        batch, length, _ = x.shape
        # As many heads as the layers make here: on a mesh that splits them, some.
        query = rotate(self.query(x).view(batch, length, -1, self.size).transpose(1, 2), cos, sin)
        key = rotate(self.key(x).view(batch, length, -1, self.size).transpose(1, 2), cos, sin)
        value = self.value(x).view(batch, length, -1, self.size).transpose(1, 2)
        if past:
            key, value = past.with_next(key, value)
        if isinstance(allowed, Blocks):
            mixed = attend_in_blocks(query, key, value, allowed, grouped=self.grouped)
        elif isinstance(allowed, tuple):
            mixed = self.positions.attend(query, key, value, allowed, grouped=self.grouped)
        else:
            # A single token sees all that there is; torch's mask would let it see the first one only.
            causal = allowed is None and key.shape[2] == length
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=allowed, is_causal=causal, enable_gqa=self.grouped
            )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def _mlp(settings: recipe.Llama, number: int) -> MLP | Experts:
    """What a layer of this number has behind its attention."""
    width, experts = settings.width, settings.experts
    if experts is None or number < experts.dense:
        return MLP(width, settings.hidden_size)
    hidden = settings.expert_size
    shared = MLP(width, experts.shared * hidden) if experts.shared else None
    return Experts(width, hidden, experts, shared)


def _apart(documents: Tensor) -> Tensor | Blocks:
    """What keeps attention within documents. How many there are of which length only a host knows: an accelerator, or
    a compiled graph, would have to wait for it, and takes a mask."""
    if documents.device.type == "cpu" and not torch.compiler.is_compiling():
        return blocks_of(documents)
    return within(documents)


def within(documents: Tensor, here: Tensor | None = None) -> Tensor:
    """Which position sees which (bool [batch, 1, positions, positions]): itself and those before it in its document.
    With `here` (int64), the rows are those positions only.

    Padding sees itself only, and nothing sees padding. What ends a document is a token of it like any other.
    """
    # A row that sees nothing would be NaN after the softmax, and NaN spreads; so padding sees itself.
    places = torch.arange(documents.shape[1], device=documents.device)
    here = places if here is None else here
    rows, columns = documents[:, here].unsqueeze(2), documents.unsqueeze(1)
    before, itself = here.unsqueeze(1) > places, here.unsqueeze(1) == places
    return (itself | (before & (rows == columns) & (rows >= 0))).unsqueeze(1)


def positions_within(documents: Tensor) -> Tensor:
    """Each position counted from where its document begins in the sample: int64 [batch, positions]."""
    places = torch.arange(documents.shape[1], device=documents.device)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    # Places only grow, so the largest place of a beginning so far is that of one's own document.
    return places - (places * first).cummax(dim=1).values


def rotary_table(positions: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, size] (float32) of position * base^(-2i/size) (Su et al. 2021, arXiv 2104.09864).

    The two halves of a head are the pairs' first and second members, as in Hugging Face's Llama.
    """
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of features of [batch, heads, positions, size] by its position's angle.

    Cosines and sines are [positions, size] or, where samples differ in them, [batch, 1, positions, size].
    """
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
