"""Columns of texts in Parquet files, Arrow files and shards of the hub, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from drivetrain.data.hub import Hub
from drivetrain.data.inputs import Input
from drivetrain.data.saved import import_arrow, mapped, slices
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

_ROWS = 256  # at a time

Texts = tuple[bytes | None, ...]
"""Some rows' texts, as UTF-8; None where a row has a null."""


def text_rows(source: Input, field: str) -> Iterator[tuple[Texts, int]]:
    """The texts of a column in order, each some with their share of the file's bytes.

    A shard, whose size nobody knows, has the cost 1 with its first rows. Raises Failure(65) where a column is not there
    or holds no text.
    """
    if source.hub:
        yield from _costed(source, _streamed(source.hub, source, field), 1)
    elif source.kind == "parquet":
        yield from _parquet_rows(source, field)
    else:
        schema, batches = mapped(source.path)
        _check_texts(schema, field, source.path)
        total = sum(batch.num_rows for batch in batches)
        yield from _costed(source, _validated(slices(batches, field, _ROWS)), total)


def _parquet_rows(source: Input, field: str) -> Iterator[tuple[Texts, int]]:
    import_arrow()
    from pyarrow import parquet

    with parquet.ParquetFile(source.path, pre_buffer=False) as file:
        _check_texts(file.schema_arrow, field, source.path)
        batches = file.iter_batches(_ROWS, columns=[field], use_threads=False)
        yield from _costed(source, (batch.column(0) for batch in batches), file.metadata.num_rows)


def _streamed(hub: Hub, source: Input, field: str) -> Iterator[Any]:
    for table in hub.tables(source.shard, _ROWS):
        _check_texts(table.schema, field, source.path)
        yield table.column(field)


def _validated(columns: Iterable[Any]) -> Iterator[Any]:
    """Arrow reads offsets out of the file as they are: they must make sense before a text is taken from there."""
    for column in columns:
        column.validate(full=True)
        yield column


def _costed(source: Input, columns: Iterable[Any], total: int) -> Iterator[tuple[Texts, int]]:
    """The texts of Arrow's arrays, which have `total` rows; each with its part of the file's bytes."""
    start = 0
    for column in columns:
        texts = tuple(map(_encoded, column.to_pylist()))
        stop = start + len(texts)
        # The difference of two rounded sums, so that the parts add up to the size.
        yield texts, source.size * min(stop, total) // total - source.size * min(start, total) // total
        start = stop


def _encoded(text: str | bytes | None) -> bytes | None:
    if isinstance(text, str):
        return text.encode()
    return text


def _check_texts(schema: Any, field: str, path: str) -> None:
    from pyarrow import types

    if field not in schema.names:
        cause = f"{path} has no column {field!r}{nearest(field, schema.names)}"
        raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=path)
    kind = schema.field(field).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not any(fits(kind) for fits in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        cause = f"{path}: column {field!r} is {kind}, no text"
        raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=path)
