"""What the values of a feature are read as: ids by buckets, hash, vocabulary or boundaries, or numbers."""

from __future__ import annotations

from typing import Any

from drivetrain.spec.importing.easyrec.columns import Column
from drivetrain.spec.importing.easyrec.growing import take_growing
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.tree import Path_

_VOCABULARIES = ("vocab_list", "vocab_dict", "vocab_file")
_VECTORLESS = "the model gets the number, without a vector made of it"
_OF_NUMBERS = "as a list of numbers"


def take_reading(reader: Reader, column: Column, path: Path_) -> bool:
    """What a feature's values are. Whether they are numbers, which have no table."""
    if take_growing(reader, column.node, path):
        reader.used(column.node, "hash_bucket_size", "num_buckets", *_VOCABULARIES)
        return False
    if reader.facts.encoded:
        is_number = not _take_encoded(reader, column.node, path)
    elif column.kind == "raw_feature":
        is_number = not column.node.has("boundaries")
        if not is_number:
            reader.take(column.node, "boundaries", (*path, "boundaries"), column.node.values("boundaries"))
    else:
        is_number = False
        _take_ids(reader, column.node, path)
    if is_number:
        _take_number(reader, column, path)
    return is_number


def _take_encoded(reader: Reader, node: Node, path: Path_) -> bool:
    """Columns that hold the numbers of rows already; whether it has rows."""
    note = "ids that are rows already (FG_NONE)"
    rows = {
        "hash_bucket_size": node.given("hash_bucket_size"),
        "num_buckets": node.given("num_buckets"),
        "boundaries": len(node.values("boundaries")) + 1,
        "vocab_list": len(node.values("vocab_list")),
        "vocab_dict": max((entry.value("value") or 0 for entry in node.nodes("vocab_dict")), default=0) + 1,
    }
    if not node.has("default_bucketize_value"):
        rows["vocab_list"] += 2  # the default value, and all words that are not in the list
    given = [name for name in rows if node.has(name)]
    if given:
        reader.take(node, given[0], (*path, "buckets"), rows[given[0]], note)
        reader.used(node, *given, *_VOCABULARIES)
    elif node.has("vocab_file"):
        reader.gap(node, "vocab_file", (*path, "buckets"), "how many rows it has: the file's lines, and 2", 2)
    return bool(given) or node.has("vocab_file")


def _take_ids(reader: Reader, node: Node, path: Path_) -> None:
    """Values that are no rows yet, by the first of these that is given."""
    if node.has("hash_bucket_size"):
        note = "by another hash than there"
        reader.take(node, "hash_bucket_size", (*path, "hash"), node.value("hash_bucket_size"), note)
    elif node.has("num_buckets"):
        reader.take(node, "num_buckets", (*path, "buckets"), node.value("num_buckets"))
    elif any(node.has(name) for name in _VOCABULARIES):
        _take_vocabulary(reader, node, (*path, "vocab"))
    else:
        known = "hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file, zch or dynamicemb"
        reader.mistake(node, "feature_name", f"has none of {known}")
    reader.used(node, "num_buckets", *_VOCABULARIES)


def _take_vocabulary(reader: Reader, node: Node, path: Path_) -> None:
    if node.has("vocab_list"):
        reader.take(node, "vocab_list", path, list(dict.fromkeys(node.values("vocab_list"))))
    elif node.has("vocab_dict"):
        words = sorted(node.nodes("vocab_dict"), key=lambda entry: entry.value("value") or 0)
        found = [entry.value("key") or "" for entry in words]
        reader.take(node, "vocab_dict", path, found, "in the order of their ids")
        if len({entry.value("value") for entry in words}) < len(words):
            reader.lose(node, "vocab_dict", "words that share an id have a row each here")
        for entry in words:
            reader.used(entry, "key", "value")
    else:
        folder, file = node.given("asset_dir"), node.value("vocab_file")
        reader.take(node, "vocab_file", path, f"{folder}/{file}" if folder else file)
        reader.used(node, "asset_dir")


def _take_number(reader: Reader, column: Column, path: Path_) -> None:
    node = column.node
    width = column.holder.given("sequence_length") if column.is_list else node.given("value_dim")
    if width and (width > 1 or column.is_list):
        holder, name = (column.holder, "sequence_length") if column.is_list else (node, "value_dim")
        reader.take(holder, name, (*path, "width"), width, _OF_NUMBERS)
    reader.used(node, "value_dim")
    _take_normalizer(reader, node, path)
    _take_default(reader, node, path)
    for name in ("autodis", "mlp"):
        inner = node.node(name)
        if inner is not None:
            reader.lose_whole(inner, _VECTORLESS)
    reader.lose(node, "embedding_dim", _VECTORLESS)


def _take_default(reader: Reader, node: Node, path: Path_) -> None:
    """What stands in place of a number that is missing."""
    name = "fg_encoded_default_value" if reader.facts.encoded else "default_value"
    given = node.given(name)
    number = _number(given)
    if given and number is None:
        reader.lose(node, name, "in place of a missing number stands one number (default)")
    elif number:
        reader.take(node, name, (*path, "default"), number)
    reader.used(node, name)


def _take_normalizer(reader: Reader, node: Node, path: Path_) -> None:
    own, text = (*path, "normalize"), node.given("normalizer")
    if not text:
        reader.take(node, "feature_name", own, "identity", "a number as it is")
    elif reader.facts.encoded:
        reader.take(node, "normalizer", own, "identity", "is computed into the data already (FG_NONE)")
    elif scale := _scale(text):
        reader.take(node, "normalizer", (*own, "mean"), scale[0])
        reader.take(node, "normalizer", (*own, "std"), scale[1])
    else:
        what = f"{text!r} is no mean and deviation: log1p, {{mean, std}}, or identity of a column that has it computed"
        reader.gap(node, "normalizer", own, what, "identity")


def _scale(text: str) -> tuple[float, float] | None:
    """What a normalizer takes away, and what it divides by; None where it does something else."""
    options: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        options[name.strip()] = value.strip()
    names = {"zscore": ("mean", "standard_deviation"), "minmax": ("min", "max")}.get(options.get("method", ""))
    if names is None:
        return None
    first, second = (_number(options.get(name)) for name in names)
    if first is None or second is None:
        return None
    divisor = second - first if names[0] == "min" else second
    return (first, divisor) if divisor > 0 else None


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
