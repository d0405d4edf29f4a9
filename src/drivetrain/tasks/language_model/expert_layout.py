"""Experts under the names of published classes that route as these do: Mixtral's (arXiv 2401.04088) and GLM-4.5's
(arXiv 2508.06471), whose router is DeepSeek-V3's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.language_model.recipe import Experts, Llama

MATRICES = ("gate", "up", "down")


@dataclass(frozen=True)
class ExpertLayout:
    """A class's names within a layer with so many experts (`count`). `expert` and `shared` have a place for the matrix,
    the first one for the expert's number before it; `matrices` are its words for `MATRICES`. `bias` is None where its
    router has none."""

    config: Mapping[str, Any]
    count: int
    router: str
    expert: str
    matrices: tuple[str, str, str]
    bias: str | None = None
    shared: str = ""


def comes_to_the_same(settings: Llama) -> bool:
    """Whether the class of `layout_of` computes what experts of these settings do."""
    experts = settings.experts
    assert experts is not None
    if experts.capacity is not None:  # classes drop nothing
        return False
    # Mixtral divides one score by itself, too, and has neither what all tokens pass nor layers without experts.
    mixtral = experts.top_k > 1 and not (experts.shared or experts.dense or experts.balance.rate)
    return experts.scores == "sigmoid" or mixtral


def layout_of(settings: Llama) -> ExpertLayout | None:
    """The class that scores experts as these settings do; None without experts."""
    experts = settings.experts
    if experts is None:
        return None
    return _glm(settings, experts) if experts.scores == "sigmoid" else _mixtral(settings, experts)


def _mixtral(settings: Llama, experts: Experts) -> ExpertLayout:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": settings.expert_size,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "sliding_window": None,
    }
    names = "block_sparse_moe.gate.weight", "block_sparse_moe.experts.{}.{}.weight"
    return ExpertLayout(config, experts.count, *names, matrices=("w1", "w3", "w2"))


def _glm(settings: Llama, experts: Experts) -> ExpertLayout:
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "moe_intermediate_size": settings.expert_size,
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "n_shared_experts": experts.shared,
        "first_k_dense_replace": experts.dense,
        "norm_topk_prob": experts.top_k > 1,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": False,
        "head_dim": settings.width // settings.heads,
        "partial_rotary_factor": 1.0,
        "num_nextn_predict_layers": 0,
    }
    return ExpertLayout(
        config,
        experts.count,
        "mlp.gate.weight",
        "mlp.experts.{}.{}_proj.weight",
        MATRICES,
        bias="mlp.gate.e_score_correction_bias",
        shared="mlp.shared_experts.{}_proj.weight",
    )


def published(layout: ExpertLayout, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a tensor of a layer with experts is there, both by their names within the layer. Raises Failure(78) for a
    bias that the class has no place for."""
    if name == "mlp.router.weight":
        yield layout.router, tensor
        if layout.config.get("n_shared_experts") == 0:  # the class has one all the same, without features
            width = tensor.shape[1]
            for word in MATRICES:
                empty = tensor.new_empty((width, 0) if word == "down" else (0, width))
                yield layout.shared.format(word), empty
    elif name == "mlp.router.bias":
        if layout.bias is not None:
            yield layout.bias, tensor
        elif tensor.any():
            cause = "the routers' biases have moved, and Mixtral's routers have none"
            raise Failure(Exit.BAD_RECIPE, cause, "use task.model.experts.scores=sigmoid, which GLM's class reads")
    elif match := re.fullmatch(r"mlp\.shared\.(\w+)\.weight", name):
        yield layout.shared.format(match[1]), tensor
    else:
        word = layout.matrices[MATRICES.index(name.removeprefix("mlp."))]
        for number, one in enumerate(tensor.unbind()):
            yield layout.expert.format(number, word), one


def own(layout: ExpertLayout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's tensors of that class under our names, all within the layer: experts of a matrix are one tensor again,
    once all are there. Names that the class does not have stay as they are."""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = defaultdict(dict)
    expert = _pattern(layout.expert)
    for name, tensor in tensors.items():
        match = expert.fullmatch(name)
        if match and match[2] in layout.matrices:
            parts[match[2]][int(match[1])] = tensor
        elif tensor.numel():  # what is shared may be there without features
            found[_own_name(layout, name)] = tensor
    for word, numbered in parts.items():
        if sorted(numbered) == list(range(layout.count)):
            matrix = MATRICES[layout.matrices.index(word)]
            found[f"mlp.{matrix}"] = torch.stack([numbered[number] for number in range(layout.count)])
        else:  # whoever loads them tells what is missing, by the file's own names
            found |= {layout.expert.format(number, word): tensor for number, tensor in numbered.items()}
    if layout.bias is None and layout.router in tensors:
        found["mlp.router.bias"] = torch.zeros(layout.count)
    return found


def _own_name(layout: ExpertLayout, name: str) -> str:
    if name == layout.router:
        return "mlp.router.weight"
    if name == layout.bias:
        return "mlp.router.bias"
    match = _pattern(layout.shared).fullmatch(name)
    return f"mlp.shared.{match[1]}.weight" if match else name


def _pattern(name: str) -> re.Pattern[str]:
    """What a name with places for a number and a word is like."""
    parts = [re.escape(part) for part in name.split("{}")]
    if len(parts) == 2:
        return re.compile(r"(\w+)".join(parts))
    return re.compile(parts[0] + r"(\d+)" + parts[1] + r"(\w+?)" + parts[2])
