"""Where samples come from."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.topics import take_topic
from drivetrain.spec.importing.easyrec.training import SET
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.tree import Path_

_TRAIN: Path_ = ("data", "train", "sources", 0)
_ELSEWHERE: Mapping[str, str] = {
    "odps": "MaxCompute is not read: export the table as CSV or Parquet, and say kind: columns and its path",
}
_FORMATS: Mapping[str, str] = {"CsvDataset": "csv", "ParquetDataset": "parquet"}
_MANY = ("ARRAY<", "LIST<")


def fg_mode_of(root: Node) -> str:
    """How columns are read; the deprecated field counts where it is given, as there."""
    data = root.node("data_config")
    if data is None:
        return "FG_NONE"
    if data.has("fg_encoded"):
        if data.value("fg_encoded"):
            return "FG_NONE"
        return "FG_DAG" if data.value("fg_threads") else "FG_NORMAL"
    return data.value("fg_mode")


def arrays_of(root: Node) -> dict[str, str]:
    """The columns that hold lists, by name."""
    data = root.node("data_config")
    found: dict[str, str] = {}
    if data is None:
        return found
    for each in data.nodes("input_fields"):
        if "ARRAY" in (each.value("input_type") or ""):
            found[each.value("input_name")] = each.value("input_type")
    for part in (data.value("input_fields_str") or "").split(";"):
        name, _, kind = part.strip().partition(":")
        if kind.upper().startswith(_MANY):
            found[name] = kind
    return found


def streamed(root: Node) -> bool:
    """Whether training data are a topic of Kafka."""
    data = root.node("data_config")
    return data is not None and _scheme(root, data, "train_input_path") == "kafka"


def take_data(reader: Reader, root: Node) -> None:
    """All of `data_config` that no other section has, and both paths."""
    data = root.node("data_config")
    if data is None:
        reader.findings.mistake("data_config", root.line, "is left out: it says what the columns are")
        return
    _take_source(reader, root, data, "train_input_path", _TRAIN)
    if root.value("eval_input_path"):
        _take_source(reader, root, data, "eval_input_path", ("data", "validation", SET))
    reader.used(root, "eval_input_path")
    _take_cost(reader, root, data)
    if reader.facts.streamed:
        reader.lose(data, "shuffle", "a topic has its own order")
    else:
        reader.take(data, "shuffle", ("data", "train", "shuffle"), data.value("shuffle"))
    if data.value("shuffle") and not reader.facts.streamed:
        reader.spare(data, "shuffle_buffer_size", "rows are shuffled, not batches: `window` says how many at a time")
    reader.spare(data, "shuffle_buffer_size", "nothing is shuffled")
    weights = data.values("sample_weight_fields")
    if weights:
        reader.take(data, "sample_weight_fields", ("task", "sample_weight"), weights[0], "not divided by its mean here")
    for other in weights[1:]:
        reader.lose(data, "sample_weight_fields", f"one column weighs all labels: {other!r} is not read")
    reader.used(data, "fg_mode", "dataset_type")
    reader.spare(data, "fg_encoded", "says what fg_mode says")
    if data.has("input_fields_str"):
        reader.spare(data, "input_fields_str", "features say how each column is read")
    for each in data.nodes("input_fields"):
        reader.used(each, "input_name", "input_type")


def _scheme(root: Node, data: Node, name: str) -> str:
    """What a path begins with, or what the type of the data set says of it; "" for files."""
    text, kind = root.value(name) or "", data.value("dataset_type")
    # The path before the type of the data set: that has a default, which files of any kind may have kept.
    if "://" in text:
        return text.partition("://")[0]
    if kind in ("OdpsDataset", "OdpsDatasetV1") and data.has("dataset_type"):
        return "" if text.endswith((".csv", ".parquet")) else "odps"
    return "kafka" if kind == "KafkaDataset" else ""


def _take_source(reader: Reader, root: Node, data: Node, name: str, path: Path_) -> None:
    text, kind, scheme = root.value(name) or "", data.value("dataset_type"), _scheme(root, data, name)
    if scheme == "kafka":
        take_topic(reader, root, name, path)
        return
    # A gap and not a mistake: the rest of the recipe is right, and only the data lie elsewhere.
    if scheme in _ELSEWHERE:
        reader.gap(root, name, (*path, "kind"), f"{text!r}: {_ELSEWHERE[scheme]}", "own:Data")
        return
    if not text:
        reader.gap(root, name, (*path, "kind"), "no path is given: say kind: columns and a path", "own:Data")
        return
    reader.take(data, "dataset_type", (*path, "kind"), "columns")
    reader.take(root, name, (*path, "path"), text)
    if kind in _FORMATS and data.has("dataset_type"):
        reader.take(data, "dataset_type", (*path, "format"), _FORMATS[kind])
    if kind == "CsvDataset":
        _take_csv(reader, data, path)


def _take_csv(reader: Reader, data: Node, path: Path_) -> None:
    reader.take(data, "delimiter", (*path, "delimiter"), data.value("delimiter"))
    names = [each.value("input_name") for each in data.nodes("input_fields")]
    for part in (data.value("input_fields_str") or "").split(";"):
        if part.strip() and not data.nodes("input_fields"):
            names.append(part.strip().partition(":")[0])
    if data.value("with_header"):
        reader.used(data, "with_header")
    elif names:
        where = "input_fields" if data.nodes("input_fields") else "input_fields_str"
        reader.take(data, where, (*path, "header"), names)
        reader.used(data, "with_header")
    else:
        reader.mistake(data, "with_header", "is false, and no input_fields say what the columns are called")


def _take_cost(reader: Reader, root: Node, data: Node) -> None:
    """Batches of as many samples as cost so much. There each process cuts its own; here each lane has a share."""
    most, column = data.value("batch_cost_size"), data.value("sample_cost_field")
    fields = ("batch_cost_size", "sample_cost_field")
    if not most:
        for name in fields:
            reader.spare(data, name, "counts where batch_cost_size is above 0")
    elif not column:
        reader.mistake(data, "batch_cost_size", "needs sample_cost_field, the column that says what a sample costs")
    elif refused := _no_costs(root, data):
        for name in fields:
            reader.lose(data, name, refused)
    else:
        # A lane here is what a process's micro-batch is there: each is cut by its own costs.
        lanes = reader.facts.accumulation * (reader.findings.source.processes or 1)
        note = f"{most} for each of {lanes} lanes, which is a micro-batch of a process there"
        reader.take(data, "batch_cost_size", ("batch", "cost"), most * lanes, note)
        reader.take(data, "batch_cost_size", ("lanes",), lanes)
        reader.take(data, "sample_cost_field", (*_TRAIN, "cost", "column"), column, "whole numbers")
        note = "a sample that costs more ends the run (over: skip leaves it out); there it never ends"
        reader.take(data, "batch_cost_size", (*_TRAIN, "cost", "most"), most, note)


def _no_costs(root: Node, data: Node) -> str:
    """Why batches have as many samples each all the same; empty where they need not."""
    if _scheme(root, data, "train_input_path") in ("kafka", *_ELSEWHERE) or not root.value("train_input_path"):
        return "batches by cost are of files: batch.cost goes with sources of kind columns"
    model = root.node("model_config")
    kind = model.chosen("model") if model else None
    inner = model.node(kind) if model and kind in ("dssm", "dssm_v2") else None
    if inner is not None and inner.value("in_batch_negative"):
        return "negatives of the batch are groups of as many samples each: batch.cost does not go with them"
    return ""
