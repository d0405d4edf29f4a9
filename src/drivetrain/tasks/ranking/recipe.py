"""Settings of ranking: the features and labels that columns are read as, the models, and a computed log of clicks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Gt, Lt, MinLen

from drivetrain.data.recipe import Parted, Source
from drivetrain.engine.tables.keyed_recipe import BUCKETS, Keyed
from drivetrain.spec.settings import Component, Count, Fraction, NonNegative, Positive, Settings, Whole, bits, cost
from drivetrain.spec.tree import Path_

LossName = Literal["bce", "focal", "softmax", "mse"]
"""What a label is learned by."""
MetricName = Literal[
    "auc",
    "grouped_auc",
    "xauc",
    "grouped_xauc",
    "normalized_entropy",
    "calibration",
    "accuracy",
    "multiclass_auc",
    "mae",
    "mse",
]
"""What a label is scored by, beside its loss."""
_YES_OR_NO: tuple[MetricName, ...] = (
    *("auc", "grouped_auc", "xauc", "grouped_xauc", "normalized_entropy", "calibration", "accuracy", "mae", "mse"),
)
_SCORED_BY: Mapping[str, tuple[MetricName, ...]] = {
    "bce": _YES_OR_NO,
    "focal": _YES_OR_NO,
    "softmax": ("accuracy", "multiclass_auc"),
    "mse": ("mae", "mse", "xauc", "grouped_xauc"),
}
"""The metrics that say something of a label, by its loss."""
_DEFAULT_METRICS: Mapping[str, tuple[MetricName, ...]] = {
    "bce": ("auc", "normalized_entropy", "calibration"),
    "focal": ("auc", "normalized_entropy", "calibration"),
    "softmax": ("accuracy",),
    "mse": ("mae", "mse"),
}
# `normalize` stays last: the readings before it make a table, which features may share.
_READINGS = ("buckets", "hash", "vocab", "keyed", "boundaries", "normalize")


class Mistaken(NamedTuple):
    """A path inside the task's settings, and what is wrong there."""

    path: Path_
    message: str


@dataclass(frozen=True, kw_only=True)
class Standard(Settings):
    """A number less its mean, divided by its standard deviation."""

    mean: Annotated[float, bits("what is taken away")]
    std: Annotated[Positive, bits("what the rest is divided by")]


@dataclass(frozen=True, kw_only=True)
class KeyedRows(Keyed):
    """Any values, each of which has a row of its own once it was seen often enough, and as long as it is seen."""

    rows: Annotated[
        int, Ge(2 * BUCKETS), bits(f"rows of the table; {BUCKETS} of them are those of values that have none")
    ]


@dataclass(frozen=True, kw_only=True)
class Feature(Settings):
    """What a model is told of a sample: an id, which is a row of a table of learned vectors, or a number.

    Exactly one of `buckets`, `hash`, `vocab`, `keyed`, `boundaries` and `normalize` says what a column is read as. A
    sample whose value is null has a row of its own; one whose list is empty, or null, has no row.
    """

    column: Annotated[str | None, bits("which column; null: the one that is called like the feature")] = None
    lookup: Annotated[
        str | None, bits("a table of task.lookups: the column is one of its columns; null: of the samples")
    ] = None
    cross: Annotated[
        tuple[str, ...] | None,
        MinLen(2),
        bits("several columns as one value, in place of `column`; hash or keyed"),
    ] = None
    buckets: Annotated[Count | None, bits("whole numbers from 0 on, below this; another one ends the run")] = None
    hash: Annotated[Count | None, bits("any values, each hashed to one of so many rows")] = None
    vocab: Annotated[
        str | tuple[str, ...] | None,
        MinLen(1),
        bits("a file with a value in each line, or the values; all others share a row"),
    ] = None
    keyed: Annotated[
        KeyedRows | None, bits("any values, each of which may get a row, and lose it again", later=True)
    ] = None
    boundaries: Annotated[
        tuple[float, ...] | None, MinLen(1), bits("a number, as the id of the stretch between two of these")
    ] = None
    normalize: Annotated[
        Literal["identity", "log1p"] | Standard | None,
        bits("a number: as it is, as the logarithm of 1 + it, or by {mean, std}"),
    ] = None
    default: Annotated[float, bits("of a number that is missing, before it is normalized")] = 0.0
    width: Annotated[Count, bits("numbers in each list of the column; 1: it has numbers and no lists")] = 1
    length: Annotated[
        Count | None, bits("of lists of ids: so many are read, what comes behind is not; null: no lists")
    ] = None
    separator: Annotated[
        str | None, MinLen(1), bits("lists that are written as text, with this between two values")
    ] = None
    map_key: Annotated[
        str | None,
        bits(
            "the column is text such as `a:1|b:2`, with `separator`; a sample's value is that of this column",
            later=True,
        ),
    ] = None
    weights: Annotated[str | None, bits("a column of lists: how much each id counts")] = None
    pooling: Annotated[
        Literal["sum", "mean", "none"], bits("what becomes of a list's vectors; none: a model of your own gets each")
    ] = "sum"
    dim: Annotated[Count | None, bits("numbers of a vector; null: task.dim")] = None
    table: Annotated[str | None, bits("features that name the same table share it; null: one of its own")] = None

    def __post_init__(self) -> None:
        # Nothing is guessed from a column's type: it may differ between files of one source, and a reading decides
        # which rows are learned.
        given = [name for name in _READINGS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"takes exactly one of {', '.join(_READINGS)}, and has {found}")
        if self.cross is not None and ((self.hash is None and self.keyed is None) or self.column is not None):
            raise ValueError("cross takes `hash` or `keyed`, and no `column`: its values are those of several columns")
        if self.cross is not None and self.length is not None:
            raise ValueError("cross is of columns that have one value, not of lists: leave length out")
        if isinstance(self.vocab, tuple) and len(set(self.vocab)) < len(self.vocab):
            twice = next(value for value in self.vocab if self.vocab.count(value) > 1)
            raise ValueError(f"vocab has {twice!r} twice: a value has one row")
        self._require_fitting_numbers()
        self._require_fitting_lists()

    def _require_fitting_numbers(self) -> None:
        # A map is one text that `separator` cuts, so it may have one where it gives a number; a list of numbers has a
        # width instead.
        if self.map_key is not None:
            self._require_fitting_map()
        elif self.normalize is not None:
            self._require_left_out("embeds nothing", "separator")
        if self.normalize is not None:
            self._require_left_out("embeds nothing", "dim", "table", "length", "weights")
        elif self.width != 1:
            raise ValueError("width is for numbers (normalize): leave it out")
        if self.boundaries is not None:
            self._require_left_out("is for single numbers", "length", "weights")
            # The id of a number is how many boundaries lie below it: one that is there twice would make a row that
            # nothing has.
            if list(self.boundaries) != sorted(set(self.boundaries)):
                raise ValueError("boundaries ascend: give them in order, each once")

    def _require_fitting_map(self) -> None:
        # A colon stands between a key and its value.
        if self.separator in (None, ":"):
            raise ValueError("map_key takes a separator, which stands between `key:value` and the next one")
        if self.length is not None or self.width != 1 or self.cross is not None:
            raise ValueError("map_key gives one value of a column: leave length, width and cross out")

    def _require_fitting_lists(self) -> None:
        if self.length is None:
            self._require_left_out("is for single values: give a length to read lists", "weights")
            if self.map_key is None:
                self._require_left_out("is for single values: give a length to read lists", "separator")
            if self.pooling != "sum":
                raise ValueError("pooling is for lists: give a length, or leave it out")

    def _require_left_out(self, why: str, *names: str) -> None:
        """Raises ValueError where one of these is given."""
        (kind,) = [name for name in _READINGS if getattr(self, name) is not None]
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{kind} {why}; leave {name} out")

    @property
    def is_number(self) -> bool:
        """Whether a model gets it as it is, without a table."""
        return self.normalize is not None

    def columns(self, name: str) -> tuple[str, ...]:
        """The columns that the feature of this name reads, without that of its weights."""
        return self.cross or (column_of(self.column, name),)


def column_of(column: str | None, name: str) -> str:
    """The column that a feature or label of this name reads. One without a name is a column, too."""
    return name if column is None else column


@dataclass(frozen=True, kw_only=True)
class LookupTable(Settings):
    """A file of what is known of users, items or the like, with a row for each. A sample whose key it does not have
    gets what a row of nulls would give."""

    path: Annotated[str, bits("a CSV, TSV or Parquet file, held in memory as arrays")]
    format: Annotated[
        Literal["csv", "tsv", "parquet"] | None, bits("what the file is; null: what its name ends in")
    ] = None
    key: Annotated[str, bits("the column that says whom or what a row is about; each value is there once")]
    by: Annotated[str, bits("the column of the samples that has this key")]


@dataclass(frozen=True, kw_only=True)
class Label(Settings):
    """What is to be foreseen of a sample."""

    column: Annotated[str | None, bits("which column; null: the one that is called like the label")] = None
    loss: Annotated[
        LossName, bits("bce, focal: yes or no (1 or 0); softmax: one of `classes`, from 0 on; mse: a number")
    ] = "bce"
    at_least: Annotated[float | None, bits("yes where the column's number is this or more; null: it is 1 or 0")] = None
    classes: Annotated[int | None, Ge(2), bits("softmax: how many there are")] = None
    label_smoothing: Annotated[
        float, Ge(0), Lt(1), bits("bce, softmax: the share of a label that is spread evenly over all classes")
    ] = 0.0
    gamma: Annotated[NonNegative, bits("focal: how much less a sample counts that is foreseen already")] = 2.0
    alpha: Annotated[
        float | None, Gt(0), Lt(1), bits("focal: the weight of yes, that of no is 1 - this; null: both 1")
    ] = None
    weight: Annotated[Positive, bits("of this label's loss, beside those of others")] = 1.0
    optional: Annotated[
        bool, bits("a sample without this label is left out of its loss; false: such a sample ends the run")
    ] = False
    metrics: Annotated[
        tuple[MetricName, ...] | None, cost("what it is scored by, beside the loss; null: what suits the loss")
    ] = None

    def __post_init__(self) -> None:
        # The number of classes is the width of the network's output, which no data may decide: it would change with the
        # files.
        if (self.classes is not None) != (self.loss == "softmax"):
            raise ValueError("classes goes with `loss: softmax`, which needs it")
        if self.label_smoothing and self.loss not in ("bce", "softmax"):
            raise ValueError(f"label_smoothing is for bce and softmax, not for {self.loss}")
        if self.at_least is not None and not self.is_binary:
            raise ValueError(f"at_least makes yes or no of a number, which {self.loss} does not learn")
        for name in self.metrics or ():
            if name not in _SCORED_BY[self.loss]:
                there = ", ".join(_SCORED_BY[self.loss])
                raise ValueError(f"metrics: {name} says nothing of {self.loss}; there are {there}")

    @property
    def is_binary(self) -> bool:
        """Whether it is yes or no."""
        return self.loss in ("bce", "focal")

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for it."""
        return self.classes or 1

    @property
    def scored_by(self) -> tuple[MetricName, ...]:
        """Its metrics."""
        if self.metrics is None:
            return _DEFAULT_METRICS[self.loss]
        return self.metrics


@dataclass(frozen=True, kw_only=True)
class DeepFM(Component):
    """A factorization machine beside a deep network, over the same vectors (Guo et al. 2017, arXiv 1703.04247)."""

    factory: ClassVar[str] = "drivetrain.tasks.ranking.models:DeepFM"
    kind: Annotated[Literal["deepfm"], bits("factorization machine and deep network")] = "deepfm"
    hidden: Annotated[tuple[Count, ...], MinLen(1), bits("widths of the deep network's layers")] = (256, 128, 64)
    dropout: Annotated[float, Ge(0), Lt(1), bits("behind each of these layers")] = 0.0

    def mistakes(self, task: Ranking) -> Iterator[Mistaken]:
        """What it cannot do with this task's features and labels."""
        yield from _needs_labels(task, 1, "deepfm")
        yield from _pooled(task)
        # By length, the first feature that has it: enough to name one of each in the message.
        dims: dict[int, str] = {}
        for name, feature in task.embedded.items():
            dims.setdefault(task.dim_of(feature), name)
        if len(dims) > 1:
            told = ", ".join(f"{dim} of {name}" for dim, name in dims.items())
            message = f"deepfm multiplies every two vectors, which have different lengths: {told}; give all one dim"
            yield Mistaken(("features",), message)
        if not dims:
            yield Mistaken(("features",), "deepfm multiplies vectors, and no feature has one: give one an id")


@dataclass(frozen=True, kw_only=True)
class MMoE(Component):
    """Experts that several labels share, each by a gate of its own (Ma et al. 2018, "Modeling task relationships in
    multi-task learning with multi-gate mixture-of-experts")."""

    factory: ClassVar[str] = "drivetrain.tasks.ranking.models:MMoE"
    kind: Annotated[Literal["mmoe"], bits("experts that labels share by gates")] = "mmoe"
    experts: Annotated[Count, bits("how many there are")] = 4
    expert: Annotated[tuple[Count, ...], MinLen(1), bits("widths of an expert's layers")] = (128, 64)
    tower: Annotated[tuple[Count, ...], MinLen(1), bits("widths of the layers of each label's own network")] = (32,)
    dropout: Annotated[float, Ge(0), Lt(1), bits("behind each of these layers")] = 0.0

    def mistakes(self, task: Ranking) -> Iterator[Mistaken]:
        """What it cannot do with this task's features and labels."""
        yield from _needs_labels(task, 2, "mmoe")
        yield from _pooled(task)


@dataclass(frozen=True, kw_only=True)
class Negatives(Settings):
    """Which items a user's own one has to stand out from."""

    kind: Annotated[
        Literal["in_batch", "uniform", "popularity"],
        bits("those of the samples beside it; or drawn: every item alike, or by how often it was chosen"),
    ] = "in_batch"
    group: Annotated[Count, bits("in_batch: so many samples that follow each other are one another's negatives")] = 64
    count: Annotated[Count, bits("drawn: how many for each sample")] = 8
    power: Annotated[NonNegative, bits("popularity: an item is drawn by this power of how often it was chosen")] = 0.75
    seed: Annotated[Whole, bits("drawn: they follow from this and the sample's position")] = 0

    def __post_init__(self) -> None:
        if self.kind == "in_batch" and self.group == 1:
            raise ValueError("group is 1, so that no sample has another one beside it: nothing would be learned")


@dataclass(frozen=True, kw_only=True)
class Pareto(Settings):
    """Labels weigh as their gradients ask for, anew in each step: none can gain but at another's cost (Lin et al.
    2019)."""

    kind: Annotated[Literal["pareto"], bits("the weights whose gradient is shortest")] = "pareto"
    least: Annotated[Mapping[str, Fraction], bits("what a label weighs at least; 0 where it is not named")] = field(
        default_factory=dict
    )

    def mistakes(self, task: Ranking) -> Iterator[Mistaken]:
        """What it cannot do with this task's labels."""
        yield from _needs_labels(task, 2, "weights")
        for name in self.least:
            if name not in task.labels:
                there = ", ".join(task.labels) or "none"
                yield Mistaken(("weights", "least", name), f"there is no such label; there are {there}")
        if sum(self.least.values()) > 1:
            yield Mistaken(("weights", "least"), "all labels together weigh 1: give less")
        for name, label in task.labels.items():
            if label.weight != 1:
                message = "task.weights finds what a label weighs: leave it out, or set a least weight"
                yield Mistaken(("labels", name, "weight"), message)


@dataclass(frozen=True, kw_only=True)
class TwoTower(Component):
    """A vector of the user and one of the item, whose product says how well they suit each other."""

    factory: ClassVar[str] = "drivetrain.tasks.ranking.models:TwoTower"
    kind: Annotated[Literal["two_tower"], bits("a network for users and one for items")] = "two_tower"
    user: Annotated[tuple[str, ...], MinLen(1), bits("features of the user; the first one says who it is")]
    item: Annotated[tuple[str, ...], MinLen(1), bits("features of the item; the first one says which it is")]
    hidden: Annotated[tuple[Count, ...], bits("widths of each network's layers")] = (64,)
    size: Annotated[Count, bits("numbers of a user's or an item's vector; they have length 1")] = 32
    temperature: Annotated[Positive, bits("what products of vectors are divided by")] = 0.1
    dropout: Annotated[float, Ge(0), Lt(1), bits("behind each layer but the last")] = 0.0
    negatives: Annotated[Negatives, bits("which items the right one has to stand out from")] = field(
        default_factory=Negatives
    )
    recall: Annotated[
        tuple[Count, ...], cost("scored is how often the right item is among so many best of the candidates")
    ] = (1, 5)

    def mistakes(self, task: Ranking) -> Iterator[Mistaken]:
        """What it cannot do with this task's features and labels."""
        if len(task.labels) > 1 or not all(label.loss == "bce" for label in task.labels.values()):
            message = "two_tower takes one label of yes or no (bce), which says what is learned from, or none: all are"
            yield Mistaken(("labels",), message)
        yield from _pooled(task)
        # An item's vector must not hang on the user, nor the other way round: else items could not be looked up by
        # their vectors.
        sides = [*self.user, *self.item]
        for side in ("user", "item"):
            path = ("model", side)
            named = getattr(self, side)
            for name in named:
                if name not in task.features:
                    yield Mistaken(path, f"there is no feature {name!r}; there are {', '.join(task.features)}")
                elif sides.count(name) > 1:
                    yield Mistaken(path, f"feature {name!r} is named twice; a feature is of the user or of the item")
            key = task.features.get(named[0])
            if key is not None and (key.is_number or key.length is not None):
                yield Mistaken(path, f"its first feature says which {side} it is, and {named[0]!r} is no single id")
        for name in task.features:
            if name not in sides:
                yield Mistaken(("features", name), "two_tower: it is neither among model.user nor among model.item")


@dataclass(frozen=True, kw_only=True)
class Ranking(Component):
    """What will be chosen, clicked or bought, and how things are rated, from columns of ids and numbers."""

    factory: ClassVar[str] = "drivetrain.tasks.ranking.task:RankingTask"
    reads: ClassVar[tuple[str, ...]] = ("columns", "clicks", "kafka")
    nested: ClassVar[Mapping[str, str]] = {"model": "ranker"}
    kind: Annotated[Literal["ranking"], bits("ranking by columns of ids and numbers")] = "ranking"
    features: Annotated[Mapping[str, Feature], MinLen(1), bits("what is known of a sample, by name")]
    lookups: Annotated[Mapping[str, LookupTable], bits("files of what is known of users or items, by name")] = field(
        default_factory=dict
    )
    labels: Annotated[Mapping[str, Label], bits("what is to be foreseen, by name")] = field(default_factory=dict)
    weights: Annotated[Pareto | None, bits("found in each step, in place of those of labels", later=True)] = None
    model: Annotated[Any, bits("the network: deepfm, mmoe, two_tower, or package.module:Name")] = field(
        default_factory=DeepFM
    )
    dim: Annotated[Count, bits("numbers of a row's vector, where a feature does not say it")] = 16
    sample_weight: Annotated[str | None, bits("a column of numbers: a sample's losses are multiplied by it")] = None
    group: Annotated[str | None, bits("a column, such as the user: grouped metrics compare within its values")] = None

    @property
    def embedded(self) -> dict[str, Feature]:
        """The features that have vectors, in the order in which a model has them: that of their names."""
        # By name, since what a recipe's digest does not tell apart, the order of its keys, must not decide a bit.
        return {name: each for name, each in sorted(self.features.items()) if not each.is_number}

    @property
    def numbers(self) -> dict[str, Feature]:
        """The features that are numbers, in the order of their names."""
        return {name: each for name, each in sorted(self.features.items()) if each.is_number}

    def dim_of(self, feature: Feature) -> int:
        """Numbers of its vectors."""
        return feature.dim or self.dim

    def mistakes(self, recipe: Any) -> Iterator[Mistaken]:
        """What does not go together in these settings, or with the rest of the recipe."""
        for section, parts in (("features", self.features), ("labels", self.labels)):
            for name in parts:
                if not name.isidentifier():
                    yield Mistaken((section, name), "names are letters, digits and _, as in Python")
        yield from self._shared()
        yield from self._looked_up()
        if recipe.embeddings is not None:
            yield from self._held(recipe.embeddings.hold)
        yield from self._grouped()
        # A model of one's own is known only once torch is loaded; what it can do is its own to say.
        if hasattr(self.model, "mistakes"):
            yield from self.model.mistakes(self)
        else:
            yield from _needs_labels(self, 1, "a model of your own")
        if self.weights is not None:
            yield from self.weights.mistakes(self)
            # The weights follow from each label's own gradient.
            if recipe.compile:
                yield Mistaken(("weights",), "a compiled network has one backward pass: leave compile out")
        if recipe.embeddings is not None and recipe.embeddings.backend == "torchrec":
            yield from self._own_rows()
        if "row" in self.labels:
            yield Mistaken(("labels", "row"), "predictions have the row's number by this name; call it otherwise")
        if isinstance(self.model, TwoTower) and self.model.negatives.kind == "in_batch":
            yield from _groups(self.model.negatives.group, recipe)

    def _own_rows(self) -> Iterator[Mistaken]:
        """What tables on TorchRec cannot do."""
        own = "does not go with embeddings.backend: torchrec; backend: own has it"
        if self.weights is not None:
            yield Mistaken(("weights",), f"weighing labels by their gradients {own}")
        if isinstance(self.model, TwoTower):
            yield Mistaken(("model", "kind"), f"two_tower, which looks up each item by itself, {own}")
        for name, feature in self.embedded.items():
            if feature.keyed is not None:
                yield Mistaken(("features", name, "keyed"), f"a table that grows {own}")
            if feature.pooling == "none":
                yield Mistaken(("features", name, "pooling"), f"giving each row of a list {own}")
            # fbgemm's kernels read four numbers at a time.
            if self.dim_of(feature) % 4:
                path = ("dim",) if feature.dim is None else ("features", name, "dim")
                yield Mistaken(path, f"{self.dim_of(feature)}, which is no multiple of 4, {own}")

    def _grouped(self) -> Iterator[Mistaken]:
        """Metrics that compare within groups which nothing says."""
        if self.group is not None:
            return
        for name, label in self.labels.items():
            for metric in label.scored_by:
                if metric.startswith("grouped_"):
                    message = f"{metric} compares within the values of a column: name it as task.group"
                    yield Mistaken(("labels", name, "metrics"), message)

    def _looked_up(self) -> Iterator[Mistaken]:
        """Features of tables that are not there, and tables of which there is no feature."""
        used = {feature.lookup for feature in self.features.values()}
        for name, feature in self.features.items():
            if feature.lookup is not None and feature.lookup not in self.lookups:
                there = ", ".join(self.lookups) or "none"
                yield Mistaken(("features", name, "lookup"), f"no such table in task.lookups: there is {there}")
        for name in self.lookups.keys() - used:
            yield Mistaken(("lookups", name), "no feature has it as its lookup: leave it out")

    def _held(self, hold: Mapping[str, str]) -> Iterator[Mistaken]:
        """Tables of keys that each process is to hold whole: a key has one owner."""
        for name, feature in self.embedded.items():
            table = feature.table or name
            # The first pattern that fits decides, as it does where tables are laid out.
            ways = [(pattern, way) for pattern, way in hold.items() if re.search(pattern, table)]
            if feature.keyed is not None and ways and ways[0][1] == "each":
                message = f"embeddings.hold: {ways[0][0]!r} has each process hold {table!r}, and a key has one owner"
                yield Mistaken(("features", name, "keyed"), f"{message}: hold it by table or by row")

    def _shared(self) -> Iterator[Mistaken]:
        """Features of one table that do not fit into it together."""
        first: dict[str, str] = {}
        for name, feature in self.embedded.items():
            other = first.setdefault(feature.table or name, name)
            # A row means the same to all that look it up only where all make it of a value in the same way.
            for what in ("dim", *_READINGS[:-1]):
                own, others = getattr(feature, what), getattr(self.features[other], what)
                if what == "dim":
                    own, others = self.dim_of(feature), self.dim_of(self.features[other])
                if own != others:
                    message = f"shares table {feature.table or name!r} with {other!r}, whose {what} is {others}"
                    yield Mistaken(("features", name, what), f"{message}, not {own}: give both the same")


def _needs_labels(task: Ranking, least: int, model: str) -> Iterator[Mistaken]:
    if len(task.labels) < least:
        wanted = "a label" if least == 1 else f"{least} labels or more"
        yield Mistaken(("labels",), f"{model} needs {wanted}, and has {len(task.labels)}: name columns to foresee")


def _pooled(task: Ranking) -> Iterator[Mistaken]:
    for name, feature in task.features.items():
        if feature.pooling == "none":
            yield Mistaken(("features", name, "pooling"), "none is for models of your own; take sum or mean")


def _groups(group: int, recipe: Any) -> Iterator[Mistaken]:
    """Negatives of the same group have to be in the same micro-batch, whoever reads it."""
    path = ("model", "negatives", "group")
    if recipe.batch is None:
        return
    if recipe.batch.cost is not None:
        yield Mistaken(path, "groups of as many samples would be torn: batch.cost says how many a lane has")
    sizes: dict[str, int] = {}
    for size in recipe.batch.sizes:
        sizes[f"batch.size {size}"] = size
        if isinstance(recipe.lanes, int) and size % recipe.lanes == 0:
            sizes[f"a lane's {size // recipe.lanes} samples (batch.size / lanes)"] = size // recipe.lanes
    if recipe.batch.micro is not None:
        sizes[f"batch.micro {recipe.batch.micro}"] = recipe.batch.micro
    for name, network in (recipe.networks or {}).items():
        if network.micro is not None:
            sizes[f"networks.{name}.micro {network.micro}"] = network.micro
    if recipe.evaluate is not None and recipe.evaluate.batch is not None:
        sizes[f"evaluate.batch {recipe.evaluate.batch}"] = recipe.evaluate.batch
    for what, size in sizes.items():
        if size % group:
            yield Mistaken(path, f"groups of {group} samples would be torn: {what} is no multiple of it")


@dataclass(frozen=True, kw_only=True)
class Clicks(Parted, Source):
    """A computed log of what users clicked and bought. How likely each of it was is known, so the best AUC is, too.

    Columns: `user`, `item` and `hour` (whole numbers), `device` (text), `tags` (lists of text), `price` (a number), the
    labels `click` and `buy` (0 or 1), and `probability`, that of the click.
    """

    factory: ClassVar[str] = "drivetrain.tasks.ranking.clicks:open_clicks"
    kind: Annotated[Literal["clicks"], bits("a computed log of clicks")] = "clicks"
    samples: Annotated[Count, bits("how many rows there are")] = 300_000
    users: Annotated[Count, bits("how many users")] = 200
    items: Annotated[Count, bits("how many items")] = 100
    appeal: Annotated[float, Gt(0), Lt(1), bits("the share of clicks, about")] = 0.25
