"""The steps of a ledger as TensorBoard's event files, run by its own Python: event_files.py LEDGER FOLDER"""

from __future__ import annotations

import json
import sys
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

_GROUPS = {"losses": "train", "norm": "gradient_norm", "lr": "learning_rate"}


def main(ledger: str, folder: str) -> None:
    writer = EventFileWriter(folder, max_queue_size=1000, flush_secs=60)
    with open(ledger, "rb") as lines:
        for line in lines:
            if line.startswith(b'{"kind":"step",'):
                writer.add_event(_event(json.loads(line)))
    writer.close()


def _event(record: dict[str, Any]) -> Event:
    """The curves that the board has of a step, under the same names."""
    seconds = record["seconds"] + record["wait"]
    values = {"step/seconds": record["seconds"], "step/wait": record["wait"]}
    for field, group in _GROUPS.items():
        for name, value in record[field].items():
            values[f"{group}/{name}"] = value
    for unit, count in record["counts"].items():
        values[f"{unit}_per_second/all"] = count / seconds
    told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(wall_time=record["time"], step=record["step"], summary=Summary(value=told))


if __name__ == "__main__":
    main(*sys.argv[1:])
