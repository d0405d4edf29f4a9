"""TensorBoard event files, replayed from the ledger."""

from __future__ import annotations

import io
import shutil
import struct
import wave
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drivetrain.ledger.records import (
    AttemptRecord,
    Histogram,
    Record,
    ShowRecord,
)
from drivetrain.ledger.run_summary import goes_back_to, is_of_step
from drivetrain.ledger.throughput import full_rate
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.scalars import histograms, scalars

_FLUSH = 10  # seconds until a point is on disk


class TensorBoardSink:
    """Writes scalars and texts by step. The files are derived: a new sink writes them anew from the ledger's start.

    Where an attempt or a rollback goes back, TensorBoard's own mark for a restart makes void what was written beyond,
    so that a point is never shown twice.
    """

    def __init__(self, folder: Path) -> None:
        """Raises Failure(78) where the tensorboard package is missing."""
        if find_spec("tensorboard") is None:
            raise Failure(
                Exit.BAD_RECIPE,
                "watch.tensorboard: the package is not installed",
                "pip install 'drivetrain[tensorboard]'",
            )
        self._folder = folder
        self._writer: Any = None
        self._full_rate = 0.0

    def record(self, record: Record) -> None:
        """Add the record's points; the first record begins a new folder."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        if self._writer is None:
            self._writer = _begin(self._folder)
        if isinstance(record, AttemptRecord):
            self._full_rate = full_rate(record)
        # TensorBoard's mark for a restart: points from this step on that came before it are void.
        if (begin := goes_back_to(record)) is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=record.time, step=begin + 1, session_log=start))
            return
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record, self._full_rate)]
        if isinstance(record, ShowRecord):
            for name, text in record.text.items():
                values.append(_text(f"gallery/{name}", text))
            values += self._media(record.files)
        values += [_bars(tag, one) for tag, one in histograms(record)]
        if values and is_of_step(record):
            event = Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
            self._writer.add_event(event)

    def _media(self, files: Mapping[str, str]) -> Iterator[Any]:
        """The sounds and pictures of a gallery that are still there: who clears it away wants them gone here too."""
        for name, relative in files.items():
            path = self._folder.parent / relative
            kind = _MEDIA.get(path.suffix)
            if kind and path.is_file():
                yield kind(f"gallery/{name}", path.read_bytes())

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()


def _audio(tag: str, content: bytes) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

    with wave.open(io.BytesIO(content)) as file:
        audio = Summary.Audio(
            sample_rate=file.getframerate(),
            num_channels=file.getnchannels(),
            length_frames=file.getnframes(),
            encoded_audio_string=content,
            content_type="audio/wav",
        )
    return Summary.Value(tag=tag, audio=audio)


def _image(tag: str, content: bytes) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

    width, height = struct.unpack(">II", content[16:24])  # of a PNG's header
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
    return Summary.Value(tag=tag, image=image)


_MEDIA = {".wav": _audio, ".png": _image}


def _begin(folder: Path) -> Any:
    """A writer in a new, empty folder. Raises FileExistsError where a link or a file stands in its place."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return EventFileWriter(str(folder), flush_secs=_FLUSH)


def _bars(tag: str, one: Histogram) -> Any:
    """As TensorBoard's page of histograms wants it: [bins, 3] of left edge, right edge and count."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[attr-defined]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[attr-defined]
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # type: ignore[attr-defined]
    from tensorboard.compat.proto.types_pb2 import DT_DOUBLE  # type: ignore[attr-defined]

    edges, rows = one.edges, []
    for place, count in enumerate(one.counts):
        rows += [edges[place], edges[place + 1], float(count)]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(one.counts)), TensorShapeProto.Dim(size=3)])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
    return Summary.Value(
        tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_DOUBLE, double_val=rows, tensor_shape=shape)
    )


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[attr-defined]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[attr-defined]
    from tensorboard.compat.proto.types_pb2 import DT_STRING  # type: ignore[attr-defined]

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    fenced = ("    " + text.replace("\n", "\n    ")).encode(errors="replace")  # Markdown's code block
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[fenced]))
