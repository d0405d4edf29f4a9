"""Models and tokenizers of `transformers`, with adapters: from folders or a hub, never from pickles."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.runtime.quiet import quiet_libraries
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.classification.recipe import Classification, Lora

_PACKAGE = "package:"
_NO_LIMIT = 1 << 20  # tokenizers say a number far beyond it where they have no limit
_TOLD = 6


@dataclass(frozen=True)
class Built:
    """A model and its configuration, which of the adapted layers have their weights turned (rows are inputs), what
    arguments it takes, and lines on what was loaded."""

    model: nn.Module
    config: dict[str, Any]
    turned: frozenset[str]
    takes: frozenset[str]
    notes: tuple[str, ...]


def open_tokenizer(settings: Classification) -> Any:
    """The model's tokenizer, padding on the right. Raises Failure(66) where there is none, 78 where it has nothing to
    pad with."""
    transformers = _library("transformers")
    with _told(settings):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            place(settings), revision=settings.revision or "main", trust_remote_code=False
        )
    # A decoder's class is read at the last token that is no padding.
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        cause = f"task.model: the tokenizer of {settings.model} has no token to pad with, and none that ends a text"
        raise Failure(Exit.BAD_RECIPE, cause, "give it a pad_token in its folder")
    return tokenizer


def build_model(settings: Classification, labels: Sequence[str], tokenizer: Any) -> Built:
    """The model with a fresh head for so many labels, or for a score where there are none. Weights that are not loaded
    are drawn from torch's default generator.

    Raises Failure(66) where it is not there, 77 where its weights are pickles, 78 where it cannot be used as the recipe
    says.
    """
    transformers = _library("transformers")
    names = dict(enumerate(labels)) or {0: "score"}
    numbers = {name: number for number, name in names.items()}
    problem = "single_label_classification" if labels else "regression"
    with _told(settings):
        config = transformers.AutoConfig.from_pretrained(
            place(settings),
            revision=settings.revision or "main",
            trust_remote_code=False,
            num_labels=len(names),
            id2label=names,
            label2id=numbers,
            problem_type=problem,
        )
    config.pad_token_id = tokenizer.pad_token_id
    _require_room(settings, config, tokenizer)
    if settings.dropout is not None:
        _set_dropout(config, settings.dropout)
    factory = transformers.AutoModelForSequenceClassification
    with _told(settings):
        if settings.pretrained:
            model, fresh, notes = _load(factory, settings, config)
        else:
            model, fresh, notes = factory.from_config(config), (), ("all weights are drawn",)
    # A configuration may name a type of its own; what is computed in is the engine's precision.
    model.float()
    turned: frozenset[str] = frozenset()
    if settings.lora is not None:
        turned = _adapt(model, settings.lora, {*fresh, *head(model)})
    # Not all models know of `token_type_ids`, though their tokenizers may give them.
    takes = frozenset(inspect.signature(model.forward).parameters)
    return Built(model, config.to_dict(), turned, takes, notes)


def place(settings: Classification) -> str:
    """The folder or id that `task.model` means. Raises Failure(66) where a package is not installed."""
    if not settings.model.startswith(_PACKAGE):
        return settings.model
    name, _, rest = settings.model.removeprefix(_PACKAGE).partition("/")
    # A name with dots would import the package's parents.
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise Failure(Exit.INPUT_MISSING, f"task.model: no package {name!r} is installed", "install it")
    return str(Path(spec.submodule_search_locations[0], rest))


def head(model: nn.Module) -> list[str]:
    """Names of the parameters that are not the pretrained model's but those of what stands on top of it."""
    base = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name for name, _ in model.named_parameters()]
    return [name for name in names if not name.startswith(base)]


def merged(tensors: Mapping[str, Tensor], lora: Lora, turned: frozenset[str]) -> dict[str, Tensor]:
    """A model's tensors with what its adapters add: W + alpha / rank * B A, transposed where layers are turned."""
    result = {}
    for name, tensor in tensors.items():
        layer, found, rest = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if found and rest == "weight":
            down = tensors[f"{layer}.lora_A.default.weight"]
            up = tensors[f"{layer}.lora_B.default.weight"]
            # In float64, so that the sum is rounded once.
            added = (up.double() @ down.double()) * (lora.alpha / lora.rank)
            if layer in turned:
                added = added.T
            tensor = (tensor.double() + added).to(tensor.dtype)
        result[f"{layer}.{rest}" if found else name] = tensor
    return result


def adapters(tensors: Mapping[str, Tensor], settings: Classification) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Adapters and head in the layout of `peft`, and the `adapter_config.json` that goes with them."""
    lora = settings.lora
    assert lora is not None
    base = _common_head(tensors)
    layers: set[str] = set()
    adapted: dict[str, Tensor] = {}
    saved: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, found, _ = name.partition(".lora_A.")
        if found:
            layers.add(layer)
        if ".lora_" in name:
            # `peft` puts the adapter's own name, "default", back in when it loads them.
            adapted[name.replace(".default.", ".")] = tensor
        if name.partition(".")[0] in base:
            saved[name] = tensor
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": place(settings),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(layers),
        "modules_to_save": base,
        "bias": "none",
        "inference_mode": True,
    }
    return {f"base_model.model.{name}": tensor for name, tensor in (adapted | saved).items()}, config


def _common_head(tensors: Mapping[str, Tensor]) -> list[str]:
    """The outermost modules that have no adapter inside: those of the head."""
    outer, adapted = set(), set()
    for name in tensors:
        module = name.partition(".")[0]
        outer.add(module)
        if ".lora_" in name:
            adapted.add(module)
    return sorted(outer - adapted)


def _load(factory: Any, settings: Classification, config: Any) -> tuple[nn.Module, tuple[str, ...], tuple[str, ...]]:
    """The model with the weights that fit it, what was drawn, and lines that say so."""
    _require_safe(settings)
    model, info = factory.from_pretrained(
        place(settings),
        config=config,
        revision=settings.revision or "main",
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        dtype=torch.float32,
    )
    fresh, unused = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    loaded = len(model.state_dict()) - len(fresh)
    notes = [f"{settings.model}: {loaded} tensors loaded"]
    if fresh:
        notes.append(f"{len(fresh)} drawn anew ({_some(fresh)})")
    if unused:
        notes.append(f"{len(unused)} of the file not used ({_some(unused)})")
    # transformers only warns of it, and would train a model that is all drawn anew.
    if not loaded:
        cause = f"task.model: no tensor of {settings.model} has a name that {type(model).__name__} knows"
        raise Failure(Exit.INCOMPATIBLE, cause, "its config.json is of another model than its weights")
    return model, tuple(fresh), (", ".join(notes),)


def _require_safe(settings: Classification) -> None:
    """Raises Failure(77) where a folder has weights, but as pickles only."""
    folder = Path(place(settings))
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt"):
        for pickle in folder.glob(pattern):
            cause = f"task.model: {folder} has its weights in {pickle.name}, a pickle, which may run any code"
            raise Failure(Exit.SECURITY, cause, "convert them to safetensors where you trust them")
    hint = "save_pretrained writes it; `pretrained: false` draws all weights"
    raise Failure(Exit.INPUT_MISSING, f"task.model: {folder} has no *.safetensors", hint)


def _require_room(settings: Classification, config: Any, tokenizer: Any) -> None:
    """Raises Failure(78) where the model has fewer positions or tokens than would be used."""
    positions = getattr(config, "max_position_embeddings", None) or _NO_LIMIT
    most = min(positions, tokenizer.model_max_length)
    if settings.length > most:
        cause = f"task.length: {settings.length} tokens are more than the {most} that {settings.model} takes"
        raise Failure(Exit.BAD_RECIPE, cause, f"give at most {most}")
    if len(tokenizer) > config.vocab_size:
        cause = (
            f"task.model: the tokenizer of {settings.model} has {len(tokenizer)} tokens, the model {config.vocab_size}"
        )
        raise Failure(Exit.BAD_RECIPE, cause, "they do not belong together")


def _set_dropout(config: Any, value: float) -> None:
    """Every probability of dropping something out that the configuration has. Raises Failure(78) where it has none."""
    names = []
    for name, old in vars(config).items():
        # Neither a switch nor a null of such a name is a probability.
        number = isinstance(old, (int, float)) and not isinstance(old, bool)
        if number and re.search(r"(dropout|pdrop)", name):
            names.append(name)
    if not names:
        cause = f"task.dropout: the configuration of {config.model_type} says nothing of dropout"
        raise Failure(Exit.BAD_RECIPE, cause, "leave it out")
    for name in names:
        setattr(config, name, value)


def _adapt(model: nn.Module, lora: Lora, also: set[str]) -> frozenset[str]:
    """Put adapters into the layers that match and freeze all but these and what is fresh; the turned layers."""
    peft = _library("peft")
    conv1d = _library("transformers").pytorch_utils.Conv1D  # GPT-2's linear layer
    try:
        pattern = re.compile(lora.match)
    except re.error as error:
        cause = f"task.lora.match: {lora.match!r} is no regular expression: {error}"
        raise Failure(Exit.BAD_RECIPE, cause, "mend the pattern") from error
    heads = {name.rpartition(".")[0] for name in also}
    layers: list[str] = []
    chosen: list[str] = []
    turned: set[str] = set()
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, conv1d)):
            continue
        layers.append(name)
        # What is fresh is trained whole: an adapter beside it would be a second way to the same weights.
        if pattern.search(name) and name not in heads:
            chosen.append(name)
            if isinstance(module, conv1d):
                turned.add(name)
    if not chosen:
        cause = f"task.lora: {lora.match!r} matches no linear layer of {type(model).__name__} below its head"
        raise Failure(Exit.BAD_RECIPE, cause, f"mend task.lora.match; there are {_some(layers)}")
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=chosen,
        fan_in_fan_out=bool(turned),
    )
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name or name in also)
    return frozenset(turned)


@contextmanager
def _told(settings: Classification) -> Iterator[None]:
    """What `transformers` raises for what is not there as Failure(66). What it would print of tensors is in `notes`."""
    logging = _library("transformers").utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        lines = filter(str.strip, str(error).splitlines())
        why = next(lines, type(error).__name__)
        cause = f"task.model: {settings.model} cannot be used: {why}"
        hint = "give a folder that save_pretrained wrote, or a hub's id where the hub can be reached"
        raise Failure(Exit.INPUT_MISSING, cause, hint) from error
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _library(name: str) -> Any:
    """Raises Failure(66) where it is not installed."""
    quiet_libraries()
    try:
        return import_module(name)
    except ImportError:
        cause = f"task kind classification needs {name}"
        raise Failure(Exit.INPUT_MISSING, cause, "pip install 'drivetrain[hf]'") from None


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _TOLD else ""
    return ", ".join(names[:_TOLD]) + more


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """What `save_pretrained` writes of a tokenizer, by file names in their order."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).iterdir()):
            if path.is_file():
                files[path.name] = path.read_bytes()
    return files
