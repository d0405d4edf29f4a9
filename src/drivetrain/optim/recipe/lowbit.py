"""Settings of AdamW with moments in few bits, by other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from drivetrain.optim.recipe.optimizer import CLIP, Beta, Clip, Optimizer, Parts
from drivetrain.spec.settings import NonNegative, Positive, bits


@dataclass(frozen=True, kw_only=True)
class LowBitAdamW(Optimizer):
    """AdamW with moments in few bits, by another library. Tensors of fewer than 4096 numbers keep theirs whole."""

    parts: ClassVar[Parts] = "rows"
    name: ClassVar[str]
    blocks: ClassVar[int] = 256
    """Numbers that share a scale."""
    lr: Annotated[NonNegative, bits("peak learning rate")] = 1e-3
    weight_decay: Annotated[NonNegative, bits("decoupled; none on norms, biases and other 1-D parameters")] = 0.01
    clip: Annotated[Clip | None, bits(CLIP)] = 1.0
    betas: Annotated[tuple[Beta, Beta], bits("decay of the first and second moment")] = (0.9, 0.999)
    eps: Annotated[Positive, bits("added to the denominator")] = 1e-8

    def arguments(self) -> dict[str, Any]:
        """The library's name for it, what it is given there, and its blocks."""
        return {"name": self.name, "options": {"betas": self.betas, "eps": self.eps}, "blocks": self.blocks}


@dataclass(frozen=True, kw_only=True)
class TorchaoAdamW8bit(LowBitAdamW):
    """torchao's, with a scale for each 256 numbers (Dettmers et al. 2021, arXiv 2110.02861)."""

    factory: ClassVar[str] = "drivetrain.optim.lowbit:torchao"
    name: ClassVar[str] = "AdamW8bit"
    kind: Annotated[Literal["torchao_adamw8bit"], bits("AdamW in 8 bits, by torchao")] = "torchao_adamw8bit"
    compiled: Annotated[bool, bits("by torch.compile, once for each shape; false: slower steps, but at once")] = True

    def arguments(self) -> dict[str, Any]:
        """Whether it is compiled, besides."""
        return super().arguments() | {"compiled": self.compiled}


@dataclass(frozen=True, kw_only=True)
class TorchaoAdamW4bit(TorchaoAdamW8bit):
    """torchao's, with a scale for each 128 numbers (Li et al. 2023, arXiv 2309.01507)."""

    name: ClassVar[str] = "AdamW4bit"
    blocks: ClassVar[int] = 128
    kind: Annotated[Literal["torchao_adamw4bit"], bits("AdamW in 4 bits, by torchao")] = "torchao_adamw4bit"


@dataclass(frozen=True, kw_only=True)
class BitsandbytesAdamW8bit(LowBitAdamW):
    """bitsandbytes', with a scale for each 256 numbers (Dettmers et al. 2021, arXiv 2110.02861)."""

    factory: ClassVar[str] = "drivetrain.optim.lowbit:bitsandbytes"
    name: ClassVar[str] = "AdamW8bit"
    kind: Annotated[Literal["bitsandbytes_adamw8bit"], bits("AdamW in 8 bits, by bitsandbytes")] = (
        "bitsandbytes_adamw8bit"
    )
