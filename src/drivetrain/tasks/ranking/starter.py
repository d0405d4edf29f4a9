"""A recipe to start from, made of what the columns of some files hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.data.column_profile import describe_columns
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.compose import NAME
from drivetrain.spec.registry import nearest
from drivetrain.spec.show import as_yaml
from drivetrain.spec.text import printable, shortened
from drivetrain.spec.tree import Path_, dotted

_LABELS = re.compile(
    r"(is_?)?(label|target|y|click(ed|s)?|clk|like[ds]?|conver(t|ted|sion)|cvr|ctr|buy|bought|purchased?|order(ed)?"
    r"|install(ed)?|churn(ed)?|default(ed)?)",
    re.IGNORECASE,
)
"""Names that say what is to be foreseen, where the values are yes or no."""
_IDS = re.compile(
    r"(.*_)?(id|user|item|code|zip|hour|day|week|weekday|month|category|cat|brand|type)(_.*)?", re.IGNORECASE
)
"""Names of whole numbers that are no amounts."""
_TIMES = re.compile(
    r"(.*[_\W])?(timestamp|datetime|date|time|ts|at|when|created|updated)(_(s|sec|ms|us|ns|utc|unix)|\W.*)?",
    re.IGNORECASE,
)
"""Names that may say when a row came to be."""
_EARLIEST = 1.9e7
"""Of a column that is called so, numbers from here on are times: 19000101, or seconds and less since 1970."""
_FEW = 32
"""Whole numbers with so many values are ids, whatever their name."""
_LARGEST = 1 << 26
_LENGTH = 32
_FRACTIONS = ("halffloat", "float", "double", "decimal")
_NESTED = ("struct", "map", "list", "large_list", "fixed_size_list")
"""Types of numbers that are no ids; and what begins the name of a type that has others in it."""
_SHOWN = 100  # characters of a name in a message
_STRETCHES = 10
_MANY = 1000
"""Rows from which on a column of which every value is another one is left out."""


@dataclass
class _Starter:
    """What is in the recipe, what each part is there for, and what was left out."""

    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, column: str, settings: dict[str, Any], why: str) -> None:
        """A feature that reads a column."""
        name = _plain(column)
        # Two columns may come to one name, as `a b` and `a-b` do.
        while name in self.features:
            name = f"{name}_"
        if name != column:
            settings = {"column": column, **settings}
        self.features[name] = settings
        # A comment stands behind the first value of a feature.
        path: Path_ = ("task", "features", name, next(iter(settings)))
        value = settings[path[-1]]
        if isinstance(value, Mapping):
            path = (*path, next(iter(value)))
        self.comments[dotted((*path, 0) if isinstance(value, list) else path)] = why


def starter_recipe(path: str, name: str, label: str | None = None, delimiter: str | None = None) -> str:
    """The text of a recipe of task `ranking` for CSV, TSV or Parquet files.

    Each column's type and values decide what it is read as. The label is the column of this name; where none is given,
    the only column of yes or no that is called like one.

    Raises what `describe_columns` raises; Failure(64) where it is not plain which column is the label, or it has no
    values that a label has; Failure(65) where no column is left to foresee it from.
    """
    about = describe_columns(path, delimiter)
    columns: Mapping[str, Mapping[str, Any]] = about["columns"]
    _require_several(path, list(columns))
    column, learned = _label(path, columns, label)
    starter = _Starter()
    for each, profile in columns.items():
        if each != column:
            _add(starter, each, profile, about["rows"])
    if not starter.features:
        cause = (
            f"{path}: no column is left to foresee {column!r} from: {'; '.join(starter.left_out) or 'there is none'}"
        )
        raise Failure(Exit.BAD_DATA, cause, "give a file with more columns")
    if all("normalize" in feature for feature in starter.features.values()):
        _add_stretches(starter, columns)
    source = {"kind": "columns", "path": path, "split": [0.9, 0.1, 0.0]}
    if delimiter is not None:
        source["delimiter"] = delimiter
    return _text(source, name, starter, (column, learned), about["rows"])


def _require_several(path: str, columns: list[str]) -> None:
    """Raises Failure(65) for a file of one column, which is mostly one of another delimiter."""
    if len(columns) == 1:
        cause = printable(f"{path}: its first line is one column, {shortened(columns[0], _SHOWN)!r}")
        raise Failure(Exit.BAD_DATA, cause, "say by --delimiter what stands between fields, such as ';'", file=path)


def _label(path: str, columns: Mapping[str, Mapping[str, Any]], label: str | None) -> tuple[str, dict[str, Any]]:
    """The column that is foreseen, and its settings."""
    if label is None:
        found = [name for name, profile in columns.items() if _LABELS.fullmatch(name) and _is_yes_or_no(profile)]
        if len(found) == 1:
            return found[0], _learned(columns[found[0]])
        binary = [name for name, profile in columns.items() if _is_yes_or_no(profile)]
        told = f"columns of 0 and 1 are {', '.join(binary)}" if binary else "no column has 0 and 1 only"
        cause = f"{path}: it is not plain which column is to be foreseen; {told}"
        raise Failure(Exit.BAD_COMMAND, printable(cause), "name it by --label COLUMN")
    if label not in columns:
        near = nearest(label, list(columns))
        cause = f"--label {label}: {path} has no such column{near}; there are {', '.join(columns)}"
        raise Failure(Exit.BAD_COMMAND, printable(cause), "name one of them")
    profile = columns[label]
    if "mean" not in profile:
        cause = f"--label {label}: it is of type {profile['type']}, and a label is a number"
        raise Failure(Exit.BAD_COMMAND, printable(cause), "write 1 and 0 for yes and no, or classes from 0 on")
    if "infinite" in profile:
        cause = f"--label {label}: {profile['infinite']:,} of its numbers are infinite, which ends training"
        raise Failure(Exit.BAD_COMMAND, printable(cause), "leave these rows out")
    return label, _learned(profile)


def _learned(profile: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"loss": "bce" if _is_yes_or_no(profile) else "mse"}
    if profile["nulls"] or "nan" in profile:
        settings["optional"] = True
    return settings


def _is_yes_or_no(profile: Mapping[str, Any]) -> bool:
    return profile.get("distinct") == 2 and profile.get("least") == 0 and profile.get("most") == 1


def _add(starter: _Starter, name: str, profile: Mapping[str, Any], rows: int) -> None:
    """A column as a feature, or a word on why it is none."""
    kind, distinct = profile["type"], profile.get("distinct", 0)
    if why := _unreadable(name, profile) or _useless(name, profile, rows):
        starter.left_out.append(why)
    elif "list" in kind:
        why = f"lists; {_LENGTH} ids of each are read"
        starter.add(name, {"hash": 1 << 16, "length": _LENGTH}, why)
    elif kind == "bool":
        starter.add(name, {"buckets": 2}, "yes or no")
    elif "mean" not in profile:
        starter.add(name, {"hash": _rows(distinct)}, f"{distinct:,} texts")
    elif kind.startswith(("int", "uint")) and (distinct <= _FEW or _IDS.fullmatch(name)):
        why = f"{distinct:,} whole numbers"
        if _is_yes_or_no(profile):
            why = "0 and 1: if it is known only afterwards, as another label is, take it out"
        starter.add(name, {"hash": _rows(distinct)}, why)
    else:
        _add_number(starter, name, profile)


def _unreadable(name: str, profile: Mapping[str, Any]) -> str:
    """Why no feature can be read from a column, or nothing."""
    kind, within = profile["type"], profile["type"].partition("<")[2]
    if not name:
        return "a column without a name, as that of a data frame's index is"
    nested = kind.startswith(_NESTED) and ("list" not in kind or any(one in within for one in (*_NESTED, *_FRACTIONS)))
    if nested or kind.startswith(("timestamp", "time", "date", "duration")):
        return f"{name}: {kind} is neither ids nor numbers"
    if "not_utf8" in profile:
        return f"{name}: {kind}, of which {profile['not_utf8']:,} values are no text"
    if "infinite" in profile:
        return f"{name}: {profile['infinite']:,} of its numbers are infinite, which ends training"
    return ""


def _useless(name: str, profile: Mapping[str, Any], rows: int) -> str:
    """Why nothing can be learned from a column of single values, or nothing."""
    distinct = profile.get("distinct", 0)
    if "list" in profile["type"]:
        return ""
    if distinct < 2:
        return f"{name}: it has {'one value' if distinct else 'no value'}"
    # Before the check by values: nearly every row has a time of its own, too, and that is not why it is left out.
    if _is_time(name, profile):
        return f"{name}: it says when, and later rows have other values; an hour comes again"
    if _is_of_one_row(name, profile, rows):
        return f"{name}: nearly every row has a value of its own"
    return ""


def _is_time(name: str, profile: Mapping[str, Any]) -> bool:
    """Whether it says when a row came to be, by its name and its values. Of texts only a few are no times: parts of a
    day."""
    if not _TIMES.fullmatch(name):
        return False
    if "mean" not in profile:
        return profile["distinct"] > _FEW
    return profile["least"] >= _EARLIEST


def _is_of_one_row(name: str, profile: Mapping[str, Any], rows: int) -> bool:
    """Whether nearly every row has a value of its own: a text, an id or a running number. Of amounts that is usual."""
    if profile["distinct"] <= 0.9 * rows or rows < _MANY:
        return False
    if "mean" not in profile or _IDS.fullmatch(name):
        return True
    return profile["type"].startswith(("int", "uint")) and profile["most"] - profile["least"] < 2 * rows


def _rows(distinct: int) -> int:
    """Rows of a table for so many values: a power of two, so that few share one, and new ones find a place."""
    # Hashed values share rows by chance: of eight times as many rows few are shared. Large tables can afford less.
    wanted = max(16, distinct * (8 if distinct < 10_000 else 2))
    return min(1 << (wanted - 1).bit_length(), _LARGEST)


def _add_number(starter: _Starter, name: str, profile: Mapping[str, Any]) -> None:
    least, most, mean, deviation = (profile[key] for key in ("least", "most", "mean", "deviation"))
    why = f"numbers from {least:.4g} to {most:.4g}, mean {mean:.4g}"
    # A long tail of large amounts would fill the whole range, were it only shifted and scaled.
    if least >= 0 and most > 10 * mean:
        starter.add(name, {"normalize": "log1p"}, why)
    elif deviation > 0:
        scale = {"mean": float(f"{mean:.4g}"), "std": float(f"{deviation:.4g}")}
        starter.add(name, {"normalize": scale}, why)
    else:
        starter.left_out.append(f"{name}: its numbers are all but equal")


def _add_stretches(starter: _Starter, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """A vector for the model where all features are numbers: stretches of one of them."""
    name, feature = next(iter(starter.features.items()))
    column = feature.get("column", name)
    least, most = columns[column]["least"], columns[column]["most"]
    width = (most - least) / _STRETCHES
    borders = {float(f"{least + width * place:.4g}") for place in range(1, _STRETCHES)}
    settings = {"column": column, "boundaries": sorted(borders)}
    starter.features[f"{name}_stretch"] = settings
    starter.comments[dotted(("task", "features", f"{name}_stretch", "column"))] = "a vector for each of its stretches"


def _plain(column: str) -> str:
    text = re.sub(r"\W", "_", column, flags=re.ASCII)
    return text if text and not text[0].isdigit() else f"_{text}"


def _free(column: str) -> str:
    """A name for the label: torch's modules have attributes, which it cannot be called like."""
    from torch import nn

    name = _plain(column)
    return f"{name}_label" if name == "row" or hasattr(nn.ModuleDict, name) else name


def _text(source: Mapping[str, Any], name: str, starter: _Starter, label: tuple[str, dict[str, Any]], rows: int) -> str:
    column, settings = label
    called = _free(column)
    if called != column:
        settings = {"column": column, **settings}
    # Some hundred steps in an epoch, where there are as many rows.
    size = max(16, min(4096, 1 << (max(1, rows // 200)).bit_length()))
    tree = {
        "name": name if re.fullmatch(NAME, name) else "mine",
        "seed": 0,
        "task": {
            "kind": "ranking",
            "dim": 16,
            "features": starter.features,
            "labels": {called: settings},
            "model": {"kind": "deepfm", "hidden": [128, 64]},
        },
        "data": {
            "train": {"sources": [{**source, "part": "train"}]},
            "validation": {"held-out": {**source, "part": "validation"}},
        },
        "batch": {"size": size, "micro": size},
        "budget": {"epochs": 3},
        "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.0},
        "embeddings": {"optimizer": {"kind": "adam", "lr": 1e-2}},
        "evaluate": {"every": {"epochs": 1}},
        "checkpoint": {"every": {"epochs": 1}, "keep": 3},
    }
    return "\n".join([*_head(source["path"], rows), as_yaml(tree, starter.comments), *_tail(starter), ""])


def _head(path: str, rows: int) -> Iterator[str]:
    yield printable(f"# Written from {path} ({rows:,} rows) by `drivetrain recipe new --from`.")
    yield "# What each feature can be read as: docs/ranking.md. `drivetrain data describe` tells what its column holds."


def _tail(starter: _Starter) -> Iterator[str]:
    if starter.left_out:
        yield ""
        yield "# Columns that are left out:"
    for told in starter.left_out:
        yield printable(f"#   {told}")
