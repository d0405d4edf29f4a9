"""Settings of language modelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from drivetrain.plan.flops import Mixture, Shape
from drivetrain.spec.settings import Component, Count, NonNegative, Positive, Settings, Whole, bits, nothing

BYTES = 256
"""The vocabulary of a model of bytes."""


@dataclass(frozen=True, kw_only=True)
class Balance(Settings):
    """What keeps a router from giving all tokens to a few experts."""

    rate: Annotated[
        NonNegative,
        bits("what each step moves the bias of an expert that had too many or too few tokens (DeepSeek-V3)"),
    ] = 1e-3
    loss: Annotated[
        NonNegative, bits("weight of the loss `balance`: by sample and layer, 1 where all experts have as much")
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class Experts(Settings):
    """Small MLPs in the place of one, of which each token takes a few."""

    count: Annotated[Count, bits("how many there are in a layer")]
    top_k: Annotated[Count, bits("how many of them a token takes")] = 2
    hidden: Annotated[
        Count | None, bits("features inside each; null: as many as an MLP has, shared out to `top_k` and `shared`")
    ] = None
    shared: Annotated[Whole, bits("how many more experts' features every token takes")] = 0
    dense: Annotated[Whole, bits("the first so many layers have an MLP of their own and no experts")] = 0
    scores: Annotated[
        Literal["softmax", "sigmoid"], bits("how the router's numbers become scores; of several, their shares count")
    ] = "softmax"
    capacity: Annotated[
        Positive | None,
        bits("places of an expert in each sample, by its even share; what finds none is dropped; null: nothing is"),
    ] = None
    balance: Annotated[Balance, bits("what keeps experts busy alike")] = field(default_factory=Balance)

    def __post_init__(self) -> None:
        if self.top_k > self.count:
            raise ValueError(f"top_k {self.top_k} of {self.count} experts")


@dataclass(frozen=True, kw_only=True)
class Llama(Component):
    """A decoder: RMSNorm, rotary positions, SwiGLU, no biases (Touvron et al. 2023, arXiv 2302.13971)."""

    factory: ClassVar[str] = "drivetrain.tasks.language_model.llama:Llama"
    kind: Annotated[Literal["llama"], bits("Llama-style decoder")] = "llama"
    vocabulary: Annotated[Count, bits("token ids; 256 for bytes")] = 256
    width: Annotated[Count, bits("features of a position")] = 256
    depth: Annotated[Count, bits("layers")] = 4
    heads: Annotated[Count, bits("attention heads; width is a multiple")] = 4
    kv_heads: Annotated[Count | None, bits("key and value heads; null: as many as heads")] = None
    hidden: Annotated[Count | None, bits("features inside the MLP; null: 8/3 of the width, to a multiple of 32")] = None
    context: Annotated[Count, bits("positions in a sample")] = 256
    dropout: Annotated[float, Ge(0), Lt(1), bits("on the residual branches")] = 0.0
    tied: Annotated[bool, bits("the output layer shares the embedding's weights")] = True
    rope_base: Annotated[Positive, bits("base of the rotary frequencies")] = 10000.0
    norm_eps: Annotated[Positive, bits("epsilon of RMSNorm")] = 1e-5
    experts: Annotated[Experts | None, bits("a mixture of experts in the place of MLPs", later=True)] = None

    @property
    def hidden_size(self) -> int:
        """Features inside the MLP."""
        return self.hidden or -(-self.width * 8 // 96) * 32

    @property
    def expert_size(self) -> int:
        """Features inside an expert; 0 where there are none."""
        if self.experts is None:
            return 0
        active = self.experts.top_k + self.experts.shared
        return self.experts.hidden or max(1, self.hidden_size // active // 8) * 8

    @property
    def balance_weight(self) -> float:
        """Of the loss `balance`, a mean over layers, so that each layer has the recipe's weight."""
        return self.experts.balance.loss * (self.depth - self.experts.dense) if self.experts else 0.0

    @property
    def shape(self) -> Shape:
        """What its parameters and FLOPs follow from."""
        mixture, experts = None, self.experts
        if experts is not None:
            mixture = Mixture(experts.count, experts.top_k, experts.shared, self.expert_size, experts.dense)
        return Shape(
            depth=self.depth,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            hidden=self.hidden_size,
            vocabulary=self.vocabulary,
            context=self.context,
            gated=True,
            tied=self.tied,
            mixture=mixture,
        )

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if (self.width // self.heads) % 2:
            raise ValueError(f"width / heads is {self.width // self.heads}; rotary positions need an even number")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.experts is None:
            return
        if self.experts.dense >= self.depth:
            raise ValueError(f"experts.dense {self.experts.dense} leaves none of {self.depth} layers to experts")
        # Torch's grouped products take rows of whole 16 bytes, in bf16 too.
        for name, size in (("width", self.width), ("experts.hidden", self.expert_size)):
            if size % 8:
                raise ValueError(f"{name} {size} is not a multiple of 8, which products by expert ask for")


@dataclass(frozen=True, kw_only=True)
class Sample(Settings):
    """The text that is generated at each evaluation."""

    prompt: Annotated[str, nothing("what the text goes on from, for models of bytes; empty: no text is generated")] = ""
    tokens: Annotated[Whole, nothing("how many tokens")] = 400
    temperature: Annotated[NonNegative, nothing("0: always the likeliest token")] = 0.7


@dataclass(frozen=True, kw_only=True)
class Bounds(Settings):
    """What goes across the boundaries of documents in a sample (sources of kind documents)."""

    attention: Annotated[
        Literal["across", "within"],
        bits("within: a token sees its own document only, whose positions count from 0"),
    ] = "across"
    loss: Annotated[
        Literal["across", "within"],
        bits("within: a document's first token is not predicted from the end of the one before"),
    ] = "across"


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Component):
    """Next-token prediction on token sources."""

    factory: ClassVar[str] = "drivetrain.tasks.language_model.task:LanguageModelTask"
    kind: Annotated[Literal["language_model"], bits("language modelling")] = "language_model"
    model: Annotated[Llama, bits("the network")] = field(default_factory=Llama)
    documents: Annotated[Bounds, bits("what crosses the boundaries of documents")] = field(default_factory=Bounds)
    logits_chunk: Annotated[
        Count | Literal["auto"] | None,
        bits(
            "positions whose logits are there at a time; auto: about 16 MB of logits; null: all of a micro-batch",
            later=True,
        ),
    ] = None
    sample: Annotated[Sample, nothing("text to look at")] = field(default_factory=Sample)

    def __post_init__(self) -> None:
        if self.sample.prompt and self.model.vocabulary != BYTES:
            given = f"model.vocabulary is {self.model.vocabulary}, not {BYTES}"
            raise ValueError(f"sample.prompt is for models of bytes, and {given}; leave the prompt empty")

    @property
    def needs_documents(self) -> bool:
        """Whether only sources will do that say which token belongs to which document."""
        return "within" in (self.documents.attention, self.documents.loss)

    @property
    def layers(self) -> int:
        """Layers that are like each other, one after the other: of a deep network `plan` traces few of them."""
        return self.model.depth

    def with_layers(self, layers: int) -> LanguageModel:
        """The same with another number of them."""
        return replace(self, model=replace(self.model, depth=layers))

    def blank_samples(self, size: int) -> Any:
        """As many samples as sources give, all tokens 0: for a plan, which need not read data then."""
        import numpy as np  # recipes are read where it is not

        tokens = np.zeros((size, self.model.context + 1), dtype=np.int64)
        if not self.needs_documents:
            return tokens
        one = {"tokens": tokens[0, :-1], "targets": tokens[0, 1:], "mask": tokens[0, 1:], "documents": tokens[0]}
        return [one] * size

    @property
    def split_sizes(self) -> dict[str, int]:
        """Heads are split whole. Positions are shared out evenly between split layers."""
        shape = self.model.shape
        heads = {"model.heads": shape.heads, "model.kv_heads": shape.kv_heads}
        if self.model.experts is not None:  # a process's share is still rows of whole 16 bytes
            heads["model.experts.hidden / 8 ="] = self.model.expert_size // 8
        return heads | {"model.context": shape.context}

    def mistakes(self, recipe: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """What stages, and parts of samples, cannot do. Which processes there are may not be known yet."""
        parallel, experts = recipe.parallel, self.model.experts
        if parallel is None:
            return
        if parallel.pipeline != 1 and experts is not None:
            message = "stages pass a single tensor on, without its balance, and keep no bias that commits have"
            yield (
                ("model", "experts"),
                f"parallel.pipeline is {parallel.pipeline}: {message}; use parallel.shard or tensor",
            )
        if parallel.context != 1 and experts is not None and experts.capacity is not None:
            message = f"parallel.context is {parallel.context}, and places are dealt over whole samples"
            yield ("model", "experts", "capacity"), f"{message}: leave it out, or use parallel.shard"
        schedule = parallel.pipeline_schedule
        if parallel.pipeline != 1 and self.logits_chunk is not None and schedule in ("zero_bubble", "zbv"):
            message = f"{schedule} passes back in two parts, and the loss of logits in chunks in one"
            yield ("logits_chunk",), f"{message}; leave it out, or use 1f1b or interleaved"

    @property
    def blocks(self) -> tuple[str, int]:
        """Layers are what stages share out."""
        return "model.depth", self.model.depth

    @property
    def positions(self) -> tuple[str, int]:
        """What processes along `context` share of a sample."""
        return "model.context", self.model.context

    @property
    def tokens_per_sample(self) -> int:
        """So that amounts may be given in tokens."""
        return self.model.context

    @staticmethod
    def derive(task: LanguageModel, source: Any) -> dict[str, Any]:
        """What a source takes from the model where the recipe leaves it open."""
        return {"context": task.model.context, "vocabulary": task.model.vocabulary}
