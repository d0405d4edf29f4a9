"""Parameters and model FLOPs of a decoder, and what devices can do at most. Written from the papers; no torch.

A multiplication and an addition are two FLOPs; the backward pass takes twice the forward's, for weights and for inputs
(Kaplan et al. 2020, arXiv 2001.08361; Narayanan et al. 2021, arXiv 2104.04473, section 5.1). Counted are the matrix
products. Embedding lookups, norms, activations, softmax and rotary positions are not, and nothing is counted for
activations that are computed again: these are the model's FLOPs, not the hardware's (PaLM, arXiv 2204.02311, app. B).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_PASSES = 3
"""The forward pass and the backward one, in units of the forward's FLOPs."""


class Mixture(NamedTuple):
    """Experts in the place of MLPs, in all layers but the first `dense`: a token passes `taken` of `experts`, and
    `shared`, of `hidden` features each, and a router."""

    experts: int
    taken: int
    shared: int
    hidden: int
    dense: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that its cost follows from.

    `gated`: the MLP has three matrices (SwiGLU), not two (GELU). `gpt`: matrices and norms have biases, and positions
    are learned, as in GPT-2 and GPT-3.
    """

    depth: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    context: int
    gated: bool
    tied: bool
    gpt: bool = False
    mixture: Mixture | None = None

    @property
    def attended(self) -> int:
        """Features of all query heads together."""
        return self.width // self.heads * self.heads

    @property
    def shared(self) -> int:
        """Features of all key heads together; as many again of the value heads."""
        return self.width // self.heads * self.kv_heads


def parameters(shape: Shape) -> int:
    """All parameters, each counted once."""
    norm = shape.width
    layer = _attention(shape)
    rows = shape.vocabulary  # of the embeddings, each of `width` numbers
    if not shape.tied:
        rows += shape.vocabulary
    if shape.gpt:
        # GPT's norms have a bias beside the weight. A gated MLP has two matrices that lead into the hidden features.
        norm += shape.width
        into_hidden = 2 if shape.gated else 1
        layer += shape.attended + 2 * shape.shared + 2 * shape.width + into_hidden * shape.hidden
        rows += shape.context
    layer += 2 * norm
    return shape.depth * layer + _mlps(shape, passed=False) + rows * shape.width + norm


def matrix_flops(shape: Shape) -> int:
    """FLOPs of a token, forward and backward, in products with weights."""
    layers = shape.depth * _attention(shape) + _mlps(shape, passed=True)
    return _PASSES * 2 * (layers + shape.width * shape.vocabulary)


def core_flops(shape: Shape) -> int:
    """FLOPs of a token, forward and backward, in products of queries with keys and of weights with values.

    A token sees half of the context on average: what a causal mask hides is not counted.
    """
    return _PASSES * 2 * shape.depth * 2 * shape.attended * shape.context // 2


def flops_per_token(shape: Shape) -> int:
    """Model FLOPs of a token, forward and backward."""
    return matrix_flops(shape) + core_flops(shape)


def flops_per_sample(shape: Shape) -> int:
    """Model FLOPs of a whole context, forward and backward."""
    return shape.context * flops_per_token(shape)


def _attention(shape: Shape) -> int:
    """Weights in the matrices of a layer's attention."""
    return shape.width * (shape.attended + 2 * shape.shared) + shape.attended * shape.width


def _mlps(shape: Shape, *, passed: bool) -> int:
    """Weights in the matrices of all layers' MLPs and experts: those that a token is `passed` through, or all."""
    matrices = 3 if shape.gated else 2
    of_mlp = matrices * shape.width * shape.hidden
    mixture = shape.mixture
    if mixture is None:
        return shape.depth * of_mlp
    experts = mixture.shared + (mixture.taken if passed else mixture.experts)
    of_experts = experts * matrices * shape.width * mixture.hidden + mixture.experts * shape.width
    return mixture.dense * of_mlp + (shape.depth - mixture.dense) * of_experts


class Peak(NamedTuple):
    """A device's dense peak in FLOP/s by the type that is multiplied; None where it has no such units."""

    bf16: float | None
    fp16: float
    tf32: float | None
    fp32: float


_PEAKS = {
    # Datasheets of NVIDIA give tensor rates "with sparsity" in most places; here they are dense, that is half of those.
    r"\bGB200\b": Peak(2500e12, 2500e12, 1250e12, 80e12),  # GB200 NVL72 datasheet, a 72nd
    r"\bB200\b": Peak(2250e12, 2250e12, 1125e12, 75e12),  # HGX B200 datasheet, an eighth
    r"\bH200 NVL\b": Peak(835.5e12, 835.5e12, 417.5e12, 60e12),  # H200 datasheet
    r"\b(H200|GH200)\b": Peak(989.4e12, 989.4e12, 494.7e12, 67e12),  # H200 and GH200 datasheets
    r"\bH100 NVL\b": Peak(835.5e12, 835.5e12, 417.5e12, 60e12),  # H100 datasheet
    r"\bH100 PCIe\b": Peak(756e12, 756e12, 378e12, 51e12),  # H100 datasheet
    r"\bH100\b": Peak(989.4e12, 989.4e12, 494.7e12, 67e12),  # H100 datasheet, SXM
    r"\bA100\b": Peak(312e12, 312e12, 156e12, 19.5e12),  # A100 datasheet
    r"\bA40\b": Peak(149.7e12, 149.7e12, 74.8e12, 37.4e12),  # A40 datasheet
    r"\bA30\b": Peak(165e12, 165e12, 82e12, 10.3e12),  # A30 datasheet
    r"\bA10G\b": Peak(70e12, 70e12, 35e12, 35e12),  # A10G datasheet
    r"\bA10\b": Peak(125e12, 125e12, 62.5e12, 31.2e12),  # A10 datasheet
    r"\bL40S\b": Peak(362e12, 362e12, 183e12, 91.6e12),  # L40S datasheet
    r"\bL4\b": Peak(121e12, 121e12, 60e12, 30.3e12),  # L4 datasheet
    r"\bRTX 4090\b": Peak(165.2e12, 165.2e12, 82.6e12, 82.6e12),  # Ada whitepaper, app. A; sums in fp32
    r"\bRTX 3090\b": Peak(71e12, 71e12, 35.6e12, 35.6e12),  # GA102 whitepaper, table 9; sums in fp32
    r"\bV100-SXM2\b": Peak(None, 125e12, None, 15.7e12),  # V100 datasheet
    r"\bV100-PCIE\b": Peak(None, 112e12, None, 14e12),  # V100 datasheet
    r"\bT4\b": Peak(None, 65e12, None, 8.1e12),  # T4 datasheet
    r"\bMI300X\b": Peak(1307.4e12, 1307.4e12, 653.7e12, 163.4e12),  # MI300X datasheet
}
"""By what is in the name that torch gives a device; the first that fits counts."""


def peak(device: str, precision: str, matmul: str = "highest") -> float | None:
    """A device's dense peak in FLOP/s, None where it is not known.

    `device` is the name that torch gives it, `precision` (fp32, bf16, fp16) and `matmul` are those of a recipe: below
    "highest", products of fp32 matrices are those of tf32 where a device has it.
    """
    for pattern, rates in _PEAKS.items():
        if re.search(pattern, device):
            if precision == "fp32" and matmul != "highest" and rates.tf32:
                return rates.tf32
            return getattr(rates, precision)
    return None
