"""Settings of language modelling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from drivetrain.plan.flops import Shape
from drivetrain.spec.settings import Component, Count, NonNegative, Positive, Settings, Whole, bits, nothing

BYTES = 256
"""The vocabulary of a model of bytes."""


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

    @property
    def hidden_size(self) -> int:
        """Features inside the MLP."""
        return self.hidden or -(-self.width * 8 // 96) * 32

    @property
    def shape(self) -> Shape:
        """What its parameters and FLOPs follow from."""
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
        )

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if (self.width // self.heads) % 2:
            raise ValueError(f"width / heads is {self.width // self.heads}; rotary positions need an even number")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")


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
    def split_sizes(self) -> dict[str, int]:
        """Heads are split whole. Positions are shared out evenly between split layers."""
        shape = self.model.shape
        heads = {"model.heads": shape.heads, "model.kv_heads": shape.kv_heads}
        return heads | {"model.context": shape.context}

    @property
    def blocks(self) -> tuple[str, int]:
        """Layers are what stages share out."""
        return "model.depth", self.model.depth

    @property
    def tokens_per_sample(self) -> int:
        """So that amounts may be given in tokens."""
        return self.model.context

    @staticmethod
    def derive(task: LanguageModel, source: Any) -> dict[str, Any]:
        """What a source takes from the model where the recipe leaves it open."""
        return {"context": task.model.context, "vocabulary": task.model.vocabulary}
