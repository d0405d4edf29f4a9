"""The decoder in Hugging Face's Llama layout: tensor names and config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from drivetrain.tasks.language_model.recipe import Llama

_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
_OUTSIDE = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def llama_layout(tensors: Mapping[str, Tensor], settings: Llama) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors under Hugging Face's names, and the configuration that `LlamaForCausalLM.from_pretrained` reads."""
    renamed = {}
    for name, tensor in tensors.items():
        # A tied head is the embedding, under whose name readers look for it.
        if name != "head.weight" or not settings.tied:
            renamed[_name(name)] = tensor
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": settings.vocabulary,
        "hidden_size": settings.width,
        "intermediate_size": settings.hidden_size,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads or settings.heads,
        "max_position_embeddings": settings.context,
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_base,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": settings.tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return renamed, config


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, index, rest = name.split(".", 2)
    return f"model.layers.{index}.{_LAYER[rest]}"
