"""The decoder in Hugging Face's layouts, Llama's or that of a class with experts: tensor names, config.json, and the
tokenizer's files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from drivetrain.data.text_tokens import TextTokens
from drivetrain.tasks.language_model import expert_layout
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
_EXPERTS = re.compile(r"layers\.(\d+)\.(mlp\.(?:router\..+|shared\..+|gate|up|down))")
"""What a layer has of experts: its number, and the name within it."""
_LAYER_HERE = {theirs: ours for ours, theirs in _LAYER.items()}
_OUTSIDE_HERE = {theirs: ours for ours, theirs in _OUTSIDE.items()}


def has_layout(settings: Llama) -> bool:
    """Whether a class of Hugging Face's comes to what a decoder of these settings comes to."""
    return settings.experts is None or expert_layout.comes_to_the_same(settings)


def to_layout(tensors: Mapping[str, Tensor], settings: Llama) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors under Hugging Face's names, and the configuration that `AutoModelForCausalLM.from_pretrained` reads.

    There `has_layout`. Raises Failure(78) where routers have learned what the class has no place for.
    """
    experts = expert_layout.layout_of(settings)
    renamed = {}
    for name, tensor in tensors.items():
        if name == "head.weight" and settings.tied:
            continue  # it is the embedding, under whose name readers look for it
        match = _EXPERTS.fullmatch(name)
        if experts is None or match is None:
            renamed[_name(name)] = tensor
            continue
        for theirs, part in expert_layout.published(experts, match[2], tensor):
            renamed[f"model.layers.{match[1]}.{theirs}"] = part
    return renamed, llama_config(settings) | dict(experts.config if experts else {})


def llama_config(settings: Llama) -> dict[str, Any]:
    """What `LlamaForCausalLM` reads of the decoder, without experts."""
    return {
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


def tokenizer_files(text: TextTokens, context: int) -> dict[str, bytes]:
    """What `AutoTokenizer.from_pretrained` reads, so that a text has the ids of training: no special token is added,
    nothing is cut or padded."""
    made: dict[str, Any] = _BYTES
    if text.content is not None:
        # A special token that a post-processor would add was in no document.
        made = json.loads(text.content) | {"truncation": None, "padding": None, "post_processor": None}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    for token in made["added_tokens"]:
        # Only what is one token in any text already: a text with an `eos_token` in it is cut there.
        if token["id"] == text.end and token["special"]:
            config["eos_token"] = token["content"]
    files = {"tokenizer.json": made, "tokenizer_config.json": config}
    return {name: f"{json.dumps(content, ensure_ascii=False)}\n".encode() for name, content in files.items()}


def _visible_bytes() -> dict[str, int]:
    """Each byte by the character that stands for it in a byte-level tokenizer: its own in Latin-1 where that is
    visible, else one from 256 on (Radford et al. 2019)."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    found = {chr(byte): byte for byte in visible}
    return found | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_BYTES = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": _BYTE_LEVEL,
    "post_processor": None,
    "decoder": _BYTE_LEVEL,
    "model": {"type": "BPE", "vocab": _visible_bytes(), "merges": []},
}
"""A `tokenizer.json` whose ids are the bytes of the text: byte-level pairs of which none is merged."""


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, index, rest = name.split(".", 2)
    return f"model.layers.{index}.{_LAYER[rest]}"


def from_layout(tensors: Mapping[str, Tensor], settings: Llama) -> dict[str, Tensor]:
    """Tensors of Hugging Face's layout under their names here; names that it does not have stay as they are.

    Left out are the head of a tied model, which is the embedding, and the frequencies that older files hold.
    """
    named: dict[str, Tensor] = {}
    layers: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        own = _own_name(name)
        if own.endswith("rotary_emb.inv_freq") or (own == "head.weight" and settings.tied):
            continue
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", own)  # what a decoder without experts does not have
        if match is None:
            named[own] = tensor
        else:
            layers[match[1]][match[2]] = tensor
    experts = expert_layout.layout_of(settings)
    for number, layer in layers.items():
        for name, tensor in (expert_layout.own(experts, layer) if experts else layer).items():
            before = "model." if name in layer else ""
            named[f"{before}layers.{number}.{name}"] = tensor
    return named


def _own_name(name: str) -> str:
    if name in _OUTSIDE_HERE:
        return _OUTSIDE_HERE[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if match is None or match[2] not in _LAYER_HERE:
        return name
    return f"layers.{match[1]}.{_LAYER_HERE[match[2]]}"
