"""Settings of data: sources, and what is read from them for training and validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt, MaxLen, MinLen
from pydantic import Field

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Component, Count, Fraction, NonNegative, Settings, Whole, bits, cost, nothing


@dataclass(frozen=True, kw_only=True)
class Source(Component):
    """What every source has."""

    seeded: ClassVar[bool] = False
    """Whether samples draw at random: what opens it then takes the run's seed as well."""
    streamed: ClassVar[bool] = False
    """Whether it is a stream: samples come one after the other, and nobody knows how many there are."""
    name: Annotated[str, nothing("what stages and reports call it; `source0`, `source1`, ... where empty")] = ""
    weight: Annotated[NonNegative, bits("its share of the training samples, beside the other sources' weights")] = 1.0


@dataclass(frozen=True, kw_only=True)
class Parted(Settings):
    """Which part of something countable: the parts share no item, and all of them together are everything."""

    part: Annotated[Literal["all", "train", "validation", "test"], bits("which part is read")] = "all"
    split: Annotated[
        tuple[Fraction, Fraction, Fraction], bits("shares of train, validation and test; their sum is 1")
    ] = (0.9, 0.05, 0.05)
    by: Annotated[
        Literal["hash", "range"], bits("a stable hash of an item's number decides its part, or its place")
    ] = "hash"

    def __post_init__(self) -> None:
        if abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(f"split adds up to {sum(self.split):g}, not to 1")

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which item is in which part."""
        return self.split, self.by


@dataclass(frozen=True, kw_only=True)
class OwnSource(Source):
    """What a source of the user's own has beside its constructor's arguments."""

    parted: Annotated[Parted | None, bits("which part of its samples; null: all")] = None


@dataclass(frozen=True, kw_only=True)
class TokenSource(Source):
    """A stream of tokens, cut into windows of `context` + 1 that overlap by one (each token is predicted once)."""

    path: Annotated[str, bits("where it lies")]
    context: Annotated[Count | None, bits("tokens in a sample; the language model's context where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Text(TokenSource):
    """Text files read as bytes, in order of their relative paths, with a zero byte after each.

    `path` is a file, a folder, or `python-stdlib`: the source text of the Python that runs, without its tests.
    """

    factory: ClassVar[str] = "drivetrain.data.text:open_text"
    kind: Annotated[Literal["text"], bits("text files as bytes")] = "text"
    include: Annotated[tuple[str, ...], bits("patterns of file names within a folder")] = ("*.txt", "*.md", "*.py")
    part: Annotated[
        Literal["all", "train", "validation"], bits("which files: a stable hash of the path decides, file by file")
    ] = "all"
    holdout: Annotated[float, Gt(0), Lt(1), bits("the share of files that are for validation")] = 0.05

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which file is in which part."""
        return (self.holdout,)


@dataclass(frozen=True, kw_only=True)
class Tokens(Parted, TokenSource):
    """A plain binary file of token ids, memory-mapped, little-endian, without a header."""

    factory: ClassVar[str] = "drivetrain.data.tokens:open_tokens"
    kind: Annotated[Literal["tokens"], bits("a plain file of token ids")] = "tokens"
    dtype: Annotated[Literal["uint8", "uint16", "uint32", "int32"], bits("how one token is stored")] = "uint16"
    by: Annotated[
        Literal["hash", "range"], bits("a sample's place decides its part, or a stable hash of its number")
    ] = "range"
    vocabulary: Annotated[Count | None, bits("every id must be below; the model's vocabulary where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Stage(Settings):
    """Other proportions from some point of the run on."""

    from_: Annotated[Amount, Field(alias="from"), bits("where it begins; what came before stays as it was")]
    weights: Annotated[Mapping[str, NonNegative], bits("weights by source name; sources that are not named give none")]


@dataclass(frozen=True, kw_only=True)
class Documents(Parted, TokenSource):
    """A file that `drivetrain data prepare` wrote, or Megatron's, as documents packed back to back.

    Samples are those of a stream of tokens, and say to which document each position belongs. The last one is padded.
    """

    factory: ClassVar[str] = "drivetrain.data.packing:open_documents"
    kind: Annotated[Literal["documents"], bits("prepared documents, packed back to back")] = "documents"
    vocabulary: Annotated[Count | None, bits("every id must be below; the model's vocabulary where absent")] = None


@dataclass(frozen=True, kw_only=True)
class Rows(Parted, Source):
    """Rows of files, each a dict of the chosen columns."""

    path: Annotated[str, bits("where it lies")]
    columns: Annotated[tuple[str, ...] | None, MinLen(1), bits("what a sample has, in this order; null: all")] = None
    key: Annotated[str | None, bits("with `by: hash`, a column whose value decides instead of the row's number")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and self.by != "hash":
            raise ValueError("key goes with `by: hash`")

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which row is in which part."""
        return *super().cut_by(), self.key


@dataclass(frozen=True, kw_only=True)
class JsonLines(Rows):
    """JSON objects, one in each line; `path` is a file, a pattern or a folder."""

    factory: ClassVar[str] = "drivetrain.data.jsonl:open_jsonl"
    kind: Annotated[Literal["jsonl"], bits("lines of JSON")] = "jsonl"
    include: Annotated[tuple[str, ...], bits("patterns of file names within a folder")] = ("*.jsonl", "*.ndjson")


@dataclass(frozen=True, kw_only=True)
class Table(Rows):
    """Rows of CSV or TSV files, every value a string; `path` is a file, a pattern or a folder."""

    factory: ClassVar[str] = "drivetrain.data.table:open_table"
    kind: Annotated[Literal["table"], bits("rows of CSV or TSV files")] = "table"
    include: Annotated[tuple[str, ...], bits("patterns of file names within a folder")] = ("*.csv", "*.tsv")
    delimiter: Annotated[
        str | None, MinLen(1), MaxLen(1), bits("between fields; null: a tab in .tsv and .txt, else a comma")
    ] = None
    quotes: Annotated[bool, bits("a field may be in double quotes; false: they are characters like others")] = True
    header: Annotated[
        tuple[str, ...] | None, MinLen(1), bits("what the columns are called, where the first line does not say it")
    ] = None
    malformed: Annotated[
        Literal["stop", "skip"], bits("a row that cannot be read ends the run, or is left out, counted and named")
    ] = "stop"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_delimiter(self.delimiter)


def _require_delimiter(delimiter: str | None) -> None:
    """Raises ValueError for what cannot stand between fields."""
    if delimiter is None:
        return
    if len(delimiter) != 1:
        raise ValueError(f"delimiter {delimiter!r} is not one character")
    if delimiter in '"\r\n\0':
        raise ValueError(f"delimiter {delimiter!r} has another meaning in such files")


@dataclass(frozen=True, kw_only=True)
class Parquet(Rows):
    """Rows of Parquet files; `path` is a file, a pattern or a folder."""

    factory: ClassVar[str] = "drivetrain.data.parquet:open_parquet"
    kind: Annotated[Literal["parquet"], bits("rows of Parquet files")] = "parquet"
    include: Annotated[tuple[str, ...], bits("patterns of file names within a folder")] = ("*.parquet", "*.pq")


@dataclass(frozen=True, kw_only=True)
class Cost(Settings):
    """What a sample costs."""

    column: Annotated[str, bits("of whole numbers from 0 on", later=True)]
    most: Annotated[Count, bits("what a sample may cost", later=True)]
    over: Annotated[
        Literal["stop", "skip"], bits("a sample that costs more ends the run, or is left out", later=True)
    ] = "stop"


_KEPT = cost("MiB of decoded blocks that are kept for the next epoch, beside those in use")
"""Named here: where it is used, `cost` is a field."""


@dataclass(frozen=True, kw_only=True)
class ColumnFiles(Rows):
    """Rows of CSV, TSV or Parquet files, decoded block by block into columns.

    `path` is a file, a pattern, a folder, a URL of one of them (any that fsspec knows), or several with commas between:
    in that order, sorted within each.
    """

    factory: ClassVar[str] = "drivetrain.data.column_files:open_columns"
    kind: Annotated[Literal["columns"], bits("columns of CSV, TSV or Parquet files")] = "columns"
    include: Annotated[tuple[str, ...], bits("patterns of file names within a folder")] = (
        "*.parquet",
        "*.pq",
        "*.csv",
        "*.tsv",
    )
    format: Annotated[
        Literal["csv", "tsv", "parquet"] | None, bits("what the files are; null: what their names end in")
    ] = None
    delimiter: Annotated[
        str | None, MinLen(1), MaxLen(1), bits("between fields; null: a tab in .tsv and .txt, else a comma")
    ] = None
    quotes: Annotated[bool, bits("a field may be in double quotes; false: they are characters like others")] = True
    header: Annotated[
        tuple[str, ...] | None, MinLen(1), bits("what a CSV file's columns are called, where its first line is a row")
    ] = None
    nulls: Annotated[tuple[str, ...], bits("fields of a CSV file that stand for no value")] = ("",)
    malformed: Annotated[
        Literal["stop", "skip"], bits("a CSV row that cannot be read ends the run, or is left out, counted and named")
    ] = "stop"
    window: Annotated[Count, bits("rows that are shuffled at a time, of each lane's blocks")] = 1 << 16
    kept: Annotated[Whole, _KEPT] = 512
    cost: Annotated[Cost | None, bits("what a sample costs, for `batch.cost`; null: nothing", later=True)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_delimiter(self.delimiter)
        if self.delimiter is not None and not self.delimiter.isascii():
            raise ValueError(f"delimiter {self.delimiter!r} is no ASCII character")


@dataclass(frozen=True, kw_only=True)
class Datasets(Rows):
    """A folder that Hugging Face's `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, memory-mapped."""

    factory: ClassVar[str] = "drivetrain.data.arrow:open_datasets"
    kind: Annotated[Literal["datasets"], bits("a folder that Hugging Face's datasets wrote")] = "datasets"
    subset: Annotated[str | None, bits("which of a DatasetDict's data sets")] = None

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which row is in which part: of another subset, rows are numbered anew."""
        return *super().cut_by(), self.subset


@dataclass(frozen=True, kw_only=True)
class Hub(Source):
    """A data set of the Hugging Face hub, or a local folder of data files, streamed: rows as dicts, in their order."""

    factory: ClassVar[str] = "drivetrain.data.hub_stream:open_hub_stream"
    seeded: ClassVar[bool] = True
    streamed: ClassVar[bool] = True
    kind: Annotated[Literal["hub"], bits("a data set of the Hugging Face hub, streamed")] = "hub"
    path: Annotated[str, bits("NAME, NAME@REVISION or a local folder of data files")]
    subset: Annotated[str | None, bits("which of its configurations")] = None
    split: Annotated[str | None, bits("which of its splits, where there are several")] = None
    columns: Annotated[tuple[str, ...] | None, MinLen(1), bits("what a sample has; null: all")] = None
    shuffle: Annotated[
        Count | None,
        bits("samples that are held to draw the next one from, and its files are shuffled; null: in order"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Kafka(Source):
    """A topic of Kafka, streamed: the rows of its messages, a message of each partition in turn."""

    factory: ClassVar[str] = "drivetrain.data.kafka:open_kafka"
    seeded: ClassVar[bool] = True
    streamed: ClassVar[bool] = True
    kind: Annotated[Literal["kafka"], bits("a topic of Kafka, streamed")] = "kafka"
    brokers: Annotated[str, cost("where brokers answer: HOST:PORT, or several with commas")]
    topic: Annotated[str, bits("which topic")]
    format: Annotated[Literal["json", "arrow"], bits("what a message is: an object, or Arrow record batches")] = "json"
    columns: Annotated[tuple[str, ...] | None, MinLen(1), bits("what a sample has; null: all")] = None
    start: Annotated[
        Literal["earliest", "latest"], bits("from the first message that is there at the first start, or the next one")
    ] = "earliest"
    until: Annotated[Literal["latest", "never"], bits("up to what is there at the first start, or on and on")] = (
        "latest"
    )
    properties: Annotated[
        str | None, cost("a file of librdkafka's settings (name=value), such as credentials: its text is kept nowhere")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Train(Settings):
    """What is trained on, and in which order."""

    sources: Annotated[
        tuple[Any, ...], MinLen(1), bits("where the samples come from: a kind of source, or package.module:Name")
    ]
    stages: Annotated[tuple[Stage, ...], bits("changes of the sources' weights during the run, in order")] = ()
    shuffle: Annotated[bool, bits("a new keyed permutation for each epoch; false: in order")] = True
    buckets: Annotated[
        Count | None,
        bits("batches among which samples are dealt out by length, so that less is padded; null: none"),
    ] = None
    workers: Annotated[Whole, cost("processes that read samples; 0: the training process, ahead in the background")] = 0
    prefetch: Annotated[Count, cost("steps that are read ahead; up to 32 where they take microseconds")] = 8

    def __post_init__(self) -> None:
        if self.buckets is not None and not self.shuffle:
            raise ValueError("buckets deal samples out anew, and `shuffle: false` keeps them in order")
        if self.buckets is not None and (len(self.sources) > 1 or self.stages):
            raise ValueError("buckets are for one source without stages")


@dataclass(frozen=True, kw_only=True)
class Data(Settings):
    """Training data, and named validation sets."""

    train: Annotated[Train, bits("training data")]
    validation: Annotated[Mapping[str, Any], bits("validation sets by name, each one source")] = field(
        default_factory=dict
    )
    test: Annotated[Mapping[str, Any], cost("test sets by name, each one source: scored once the run is done")] = field(
        default_factory=dict
    )
