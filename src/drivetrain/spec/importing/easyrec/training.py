"""How it is trained: budget, batches, optimizers, precision, evaluation, commits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.schedules import Rate, take_schedule
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.importing.findings import Taken
from drivetrain.spec.tree import Path_

SET = "validation"
"""What the validation set is called."""
_ENDLESS = "a topic has no epochs"
_DECAY = "not of biases and other 1-D parameters, unless `groups` gives it to them"


@dataclass(frozen=True)
class _Kind:
    """A kind of ours, and the field of its settings that each of their fields is.

    `betas` is whether it has beta1 and beta2. `nearest`: ours moves otherwise, and its user has to say so.
    """

    kind: str
    fields: Mapping[str, str]
    betas: bool = False
    nearest: str = ""


_RATES = {"lr": "lr", "weight_decay": "weight_decay"}
_DENSE: Mapping[str, _Kind] = {
    "sgd_optimizer": _Kind("sgd", {**_RATES, "momentum": "momentum", "nesterov": "nesterov"}),
    "adagrad_optimizer": _Kind("adagrad", {**_RATES, "initial_accumulator_value": "initial", "eps": "eps"}),
    "adam_optimizer": _Kind("adam", {**_RATES, "eps": "eps", "amsgrad": "amsgrad"}, betas=True),
    "adamw_optimizer": _Kind("adamw", {**_RATES, "eps": "eps", "amsgrad": "amsgrad"}, betas=True),
    "adadelta_optimizer": _Kind("torch.optim:Adadelta", {**_RATES, "rho": "rho", "eps": "eps"}),
    "rmsprop_optimizer": _Kind("rmsprop", {**_RATES, "alpha": "alpha", "eps": "eps"}),
}
_SPARSE: Mapping[str, _Kind] = {
    "sgd_optimizer": _Kind("sgd", {"lr": "lr"}),
    "adagrad_optimizer": _Kind("adagrad", {"lr": "lr", "initial_accumulator_value": "initial"}),
    "adam_optimizer": _Kind("adam", _RATES, betas=True),
    "lars_sgd_optimizer": _Kind("lars", {**_RATES, "momentum": "momentum"}),
    "lamb_optimizer": _Kind("lamb", _RATES, betas=True),
    "rowwise_adagrad_optimizer": _Kind("rowwise_adagrad", {"lr": "lr"}),
    "partial_rowwise_adam_optimizer": _Kind("adam", _RATES, True, "adam, whose second moment is each number's own"),
    "partial_rowwise_lamb_optimizer": _Kind("lamb", _RATES, True, "lamb, whose second moment is each number's own"),
    "adadelta_optimizer": _Kind("adagrad", {"lr": "lr"}, nearest="rowwise_adagrad, or adagrad"),
    "rmsprop_optimizer": _Kind("adam", {"lr": "lr"}, nearest="adam"),
}


def accumulation_of(root: Node) -> int:
    """Micro-batches of a step; there each of them is one."""
    train = root.node("train_config")
    return max(1, train.value("gradient_accumulation_steps") or 1) if train else 1


def take_training(reader: Reader, root: Node) -> None:
    """All of `train_config`, `eval_config` and `export_config`. Raises Failure(78) where it says not how long."""
    train = root.node("train_config")
    if train is None:
        reader.findings.mistake("train_config", 1, "is left out: it says how long, and by which optimizers")
        return
    data = root.node("data_config") or Node("DataConfig", root.line, path="data_config")
    _take_budget(reader, train)
    _take_batch(reader, train, data)
    _take_optimizers(reader, train)
    _take_precision(reader, train)
    _take_evaluation(reader, root, data)
    _take_commits(reader, train)
    if train.value("fine_tune_checkpoint"):
        text = train.value("fine_tune_checkpoint")
        what = f"its checkpoints ({text}) are pickled: write the weights as safetensors and say init.from"
        reader.lose(train, "fine_tune_checkpoint", what)
    if reader.findings.source.processes is not None:
        # Line 0: it stands in the command, not in the file.
        processes = Taken(("launch", "processes"), reader.findings.source.processes, "--processes", 0)
        reader.findings.taken.append(processes)


def _take_budget(reader: Reader, train: Node) -> None:
    steps, epochs = train.value("num_steps") or 0, train.value("num_epochs") or 0
    # A failure at once, not one finding among others: without an end nothing of what follows can be computed.
    if bool(steps) == bool(epochs):
        file, name = reader.findings.source.name, "num_epochs" if epochs else "num_steps"
        cause = "neither num_steps nor num_epochs is given: nothing says how long it trains"
        if steps:
            cause = f"num_steps {steps} and num_epochs {epochs} are both given: each says how long it trains"
        place = f"{file}:{train.line_of(name)}: {train.key(name)}"
        raise Failure(Exit.BAD_RECIPE, f"{place}: {cause}", "give one of them in the file, or by --edits as 0")
    if steps:
        note = f"{steps} micro-batches there" if reader.facts.accumulation > 1 else ""
        reader.take(train, "num_steps", ("budget", "steps"), reader.facts.steps(steps), note)
        reader.used(train, "num_epochs")
    elif reader.facts.streamed:
        reader.gap(train, "num_epochs", ("budget", "steps"), f"{_ENDLESS}: how many steps it trains", 1000)
        reader.used(train, "num_steps")
    else:
        reader.take(train, "num_epochs", ("budget", "epochs"), epochs)
        reader.used(train, "num_steps")


def _take_batch(reader: Reader, train: Node, data: Node) -> None:
    micro, processes = data.value("batch_size"), reader.findings.source.processes or 1
    # There a step's size follows from the number of processes; here it is the recipe's, and stays on any number of
    # them.
    size = micro * reader.facts.accumulation * processes
    note = f"of each process there: {micro} x {reader.facts.accumulation} micro-batches x {processes} (--processes)"
    reader.take(data, "batch_size", ("batch", "size"), size, note)
    reader.take(data, "batch_size", ("batch", "micro"), micro)
    reader.used(train, "gradient_accumulation_steps")


def _take_optimizers(reader: Reader, train: Node) -> None:
    dense = train.node("dense_optimizer")
    ways = (("dense_optimizer", ("optimizer",), _DENSE), ("sparse_optimizer", ("embeddings", "optimizer"), _SPARSE))
    for name, path, kinds in ways:
        node = train.node(name)
        if node is None:
            reader.mistake(train, name, f"is left out; it is what moves {path[0]}")
            continue
        peak = _take_optimizer(reader, node, path, kinds)
        if peak is not None:
            take_schedule(reader, node, Rate((*path[:-1], "schedule"), peak, reader.facts.accumulation))
    if dense is not None:
        _take_clipping(reader, train)
        _take_parts(reader, dense)
        _take_average(reader, dense, train)


def _take_optimizer(reader: Reader, node: Node, path: tuple[str, ...], kinds: Mapping[str, _Kind]) -> float | None:
    """The optimizer at a path; its peak learning rate, None where there is none."""
    name = node.chosen("optimizer")
    if name is None:
        reader.mistake(node, "optimizer", f"none is given; there are {', '.join(kinds)}")
        return None
    inner, kind = node.node(name), kinds[name]
    assert inner is not None, "a chosen field is there"
    if kind.nearest:
        reader.gap(node, name, (*path, "kind"), f"there is none; nearest is {kind.nearest}", kind.kind)
    else:
        reader.take(node, name, (*path, "kind"), kind.kind)
    for theirs, ours in kind.fields.items():
        # Said only where it acts: a decay of 0 is the same for all.
        note = _DECAY if theirs == "weight_decay" and path == ("optimizer",) and inner.value(theirs) else ""
        reader.take(inner, theirs, (*path, ours), inner.value(theirs), note)
    if kind.betas:
        reader.take(inner, "beta1", (*path, "betas"), [inner.value("beta1"), inner.value("beta2")], "and beta2")
        reader.used(inner, "beta2")
    if inner.type == "FusedRowWiseAdagradOptimizer":
        _take_row_decay(reader, inner, path)
    return inner.value("lr")


def _take_row_decay(reader: Reader, node: Node, path: tuple[str, ...]) -> None:
    """Their decay counts in one of its modes only."""
    mode = node.value("weight_decay_mode")
    if mode == "L2":
        reader.take(node, "weight_decay", (*path, "weight_decay"), node.value("weight_decay"))
        reader.used(node, "weight_decay_mode")
    elif mode == "DECOUPLE":
        reader.lose(node, "weight_decay_mode", "rowwise_adagrad adds the decay to the gradient (L2)")
        reader.lose(node, "weight_decay", "belongs to that mode")
    else:
        reader.spare(node, "weight_decay", "does nothing there while weight_decay_mode is NONE")
        reader.used(node, "weight_decay_mode")


def _take_clipping(reader: Reader, train: Node) -> None:
    """Nothing is clipped there unless somebody says so; some optimizers of ours do."""
    node = train.node("grad_clipping")
    path: tuple[str, ...] = ("optimizer", "clip")
    if node is None:
        reader.take(train, "grad_clipping", path, None)
        return
    kind, most = node.value("clipping_type"), node.value("max_gradient")
    if kind not in ("norm", "value", "none"):
        reader.mistake(node, "clipping_type", f"is norm, value or none, not {kind!r}")
    elif kind == "none":
        reader.take(node, "clipping_type", path, None)
    elif kind == "norm":
        reader.take(node, "max_gradient", path, most, "one norm over layers and rows; there over layers only")
        reader.used(node, "clipping_type")
    else:
        reader.take(node, "max_gradient", (*path, "value"), most)
        reader.used(node, "clipping_type")
    reader.used(node, "max_gradient")
    if node.value("norm_type") != 2.0 and kind == "norm":
        reader.lose(node, "norm_type", "the norm is the Euclidean one")
    reader.spare(node, "norm_type", "is the Euclidean one, or not asked for")
    reader.spare(node, "enable_global_grad_clip", "the norm is that of all processes together in any case")


def _take_parts(reader: Reader, dense: Node) -> None:
    """Optimizers of some parameters: groups of ours, where they move as all others do, at rates of their own."""
    place = 0
    for part in dense.nodes("part_optimizers"):
        name = part.chosen("optimizer")
        inner = part.node(name) if name else None
        if name is None or inner is None or name != dense.chosen("optimizer"):
            what = f"all layers have one kind of optimizer, not {name or 'none'} for {part.value('regex_pattern')!r}"
            reader.lose_whole(part, what)
            continue
        _take_part(reader, part, inner, ("optimizer", "groups", place))
        whole = dense.node(dense.chosen("optimizer") or "")
        for option in inner.fields:
            if option not in _RATES and whole is not None and inner.value(option) != whole.value(option):
                reader.lose(inner, option, "a group has a rate, a weight decay and a schedule of its own, and no more")
        reader.used(inner, *inner.fields)
        reader.used(part, name)
        # Counted by hand: parts that were lost have no group, and later ones move up.
        place += 1


def _take_part(reader: Reader, part: Node, inner: Node, path: Path_) -> None:
    pattern = part.value("regex_pattern") or ""
    try:
        re.compile(pattern)
    except re.error as error:
        reader.mistake(part, "regex_pattern", f"{pattern!r} is no regular expression: {error}")
        return
    # Parameters have other names here, but what they end in: patterns that speak of nothing else mean the same.
    if set(re.findall(r"(?<!\\)[A-Za-z_]\w*", pattern)) <= {"bias", "weight"}:
        reader.take(part, "regex_pattern", (*path, "match"), f"^(?:{pattern})$", "the whole name, as there")
    else:
        what = f"{pattern!r} by our names of parameters, such as 'model.deep'"
        reader.gap(part, "regex_pattern", (*path, "match"), what, ".")
    for theirs, ours in _RATES.items():
        reader.take(inner, theirs, (*path, ours), inner.value(theirs))
    take_schedule(reader, part, Rate((*path, "schedule"), inner.value("lr"), reader.facts.accumulation))


def _take_average(reader: Reader, dense: Node, train: Node) -> None:
    ema = dense.node("ema")
    if ema is None:
        return
    reader.take(ema, "decay", ("average", "decay"), ema.value("decay"), "of layers, not of tables' rows, as there")
    reader.take(ema, "decay", ("average", "warmup"), False, "none there")


def _take_precision(reader: Reader, train: Node) -> None:
    named = train.value("mixed_precision") or ""
    words = {"": "fp32", "BF16": "bf16", "FP16": "fp16"}
    if named not in words:
        reader.mistake(train, "mixed_precision", f"is BF16, FP16 or empty, not {named!r}")
        return
    if named:
        reader.take(train, "mixed_precision", ("precision",), words[named])
    reader.used(train, "mixed_precision")
    scaler = train.node("grad_scaler")
    if scaler is None:
        return
    if named != "FP16":
        reader.spare_whole(scaler, "the loss is scaled with FP16 only")
        return
    for name, field in (("init_scale", "start"), ("growth_interval", "window")):
        reader.take(scaler, name, ("scaling", field), scaler.value(name))
    for name, fixed in (("growth_factor", 2.0), ("backoff_factor", 0.5)):
        if scaler.value(name) != fixed:
            reader.lose(scaler, name, "the factor is doubled, and halved")
        reader.spare(scaler, name, "is what it is here")


def _take_evaluation(reader: Reader, root: Node, data: Node) -> None:
    """They score after each save."""
    evaluation = root.node("eval_config")
    if data.value("eval_batch_size"):
        reader.take(data, "eval_batch_size", ("evaluate", "batch"), data.value("eval_batch_size"))
    reader.used(data, "eval_batch_size")
    if evaluation is None:
        return
    if evaluation.value("num_steps"):
        size = data.value("eval_batch_size") or data.value("batch_size")
        samples = evaluation.value("num_steps") * size * (reader.findings.source.processes or 1)
        note = f"{evaluation.value('num_steps')} steps of {size}, on each process"
        reader.take(evaluation, "num_steps", ("evaluate", "budget", "samples"), samples, note)
        reader.take(evaluation, "num_steps", ("evaluate", "full_at_end"), False, "nor at the end")
    reader.used(evaluation, "num_steps")
    average = evaluation.value("use_dense_ema")
    train = root.node("train_config")
    dense = train.node("dense_optimizer") if train else None
    if average is not None and dense is not None and dense.has("ema"):
        reader.take(evaluation, "use_dense_ema", ("average", "evaluate"), average)
    reader.spare(evaluation, "use_dense_ema", "there is no average to choose")


def _take_commits(reader: Reader, train: Node) -> None:
    """A number of 0 keeps all, as one that is left out."""
    most = train.value("keep_checkpoint_max")
    epochs = train.value("save_checkpoints_epochs") or 0
    steps = reader.facts.steps(train.value("save_checkpoints_steps") or 0)
    saved = {"save_checkpoints_epochs": ("epochs", epochs), "save_checkpoints_steps": ("steps", steps)}
    name = "save_checkpoints_epochs" if epochs else "save_checkpoints_steps"
    unit, interval = saved[name]
    if reader.facts.streamed and unit == "epochs":
        reader.lose(train, name, f"{_ENDLESS}: say checkpoint.every and evaluate.every in steps")
    elif interval:
        for section in ("checkpoint", "evaluate"):
            reader.take(train, name, (section, "every", unit), interval)
        # There all commits stay then; here the newest few would, so each that is due is kept.
        if not most:
            note = "0, or left out: all are kept"
            reader.take(train, "keep_checkpoint_max", ("checkpoint", "keep_every", unit), interval, note)
    if epochs:
        reader.spare(train, "save_checkpoints_steps", "save_checkpoints_epochs takes its place, there as here")
    if most:
        reader.take(train, "keep_checkpoint_max", ("checkpoint", "keep"), most)
    reader.used(train, "save_checkpoints_steps", "save_checkpoints_epochs", "keep_checkpoint_max")
    if train.value("is_profiling"):
        reader.take(train, "is_profiling", ("profile", "start"), 3, "steps 3 to 12, as there")
        reader.take(train, "is_profiling", ("profile", "steps"), 10)
    reader.used(train, "is_profiling")
    _take_sinks(reader, train)


def _take_sinks(reader: Reader, train: Node) -> None:
    if train.has("use_tensorboard"):  # it takes an extra package, which nobody asked for who leaves it out
        reader.take(train, "use_tensorboard", ("watch", "tensorboard"), train.value("use_tensorboard"))
    for name in train.values("tensorboard_summaries"):
        if name not in _SUMMARIES:
            reader.mistake(train, "tensorboard_summaries", f"is one of {', '.join(_SUMMARIES)}, not {name!r}")
    asked = {"parameter", "gradient", "gradient_norm"} & set(train.values("tensorboard_summaries"))
    why = "losses, rates and the gradients' norm of every step are in the ledger, and TensorBoard shows them"
    if asked:
        told = (
            "`statistics: {every: {steps: 100}, histograms: true}` has the distributions of weights and of their moves"
        )
        reader.lose(train, "tensorboard_summaries", f"{', '.join(sorted(asked))}: {told}")
    reader.spare(train, "tensorboard_summaries", why)


_SUMMARIES = ("loss", "learning_rate", "parameter", "global_gradient_norm", "gradient_norm", "gradient")
