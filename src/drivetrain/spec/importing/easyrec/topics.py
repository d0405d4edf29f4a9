"""Topics of Kafka: what a `kafka://` path says. Its text may hold credentials, and nothing here tells it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.tree import Path_

_FORM = "kafka://BROKER:PORT/TOPIC?group.id=GROUP"
_STARTS: Mapping[str, str] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), "earliest"),
    **dict.fromkeys(("latest", "largest", "end"), "latest"),
}
_OURS = ("group.id", "auto.offset.reset", "enable.auto.commit", "max.poll.interval.ms", "debug")
"""Settings of their consumer that ours has no use for, or another field."""
_TIME = "start.timestamp.ms"


@dataclass(frozen=True)
class _Topic:
    """`settings` are those of the consumer, by name."""

    brokers: str
    name: str
    settings: Mapping[str, str]


def take_topic(reader: Reader, root: Node, name: str, path: Path_) -> None:
    """A source of kind `kafka`, by the field of this name. As training data it has no end, as a validation set one."""
    try:
        topic = _topic(root.value(name) or "")
    except ValueError as error:
        reader.mistake(root, name, str(error))
        return
    reader.take(root, name, (*path, "kind"), "kafka")
    reader.take(root, name, (*path, "brokers"), topic.brokers)
    reader.take(root, name, (*path, "topic"), topic.name)
    reader.take(root, name, (*path, "format"), "arrow", "each message with its schema")
    reset = topic.settings.get("auto.offset.reset", "latest")
    if reset in _STARTS:
        reader.take(root, name, (*path, "start"), _STARTS[reset], "auto.offset.reset")
    else:
        reader.lose(root, name, "auto.offset.reset: a first start is at the earliest message, or the latest")
    until = "never" if name == "train_input_path" else "latest"
    reader.take(root, name, (*path, "until"), until)
    if _TIME in topic.settings:
        reader.lose(root, name, f"{_TIME}: a first start is at the earliest message, or the latest, not at a time")
    reader.spare(root, name, "group.id shares nothing out: lanes have partitions, and commits their offsets")
    others = [each for each in topic.settings if each not in (*_OURS, _TIME)]
    if others:
        what = f"a file of yours with the settings that the path has ({', '.join(others)}), NAME=VALUE in a line"
        reader.gap(root, name, (*path, "properties"), what, "kafka.properties")


def _topic(text: str) -> _Topic:
    """Raises ValueError that says nothing of what the text holds."""
    try:
        parts = urlsplit(text)
    except ValueError:  # which shows it
        raise ValueError(f"is no {_FORM}") from None
    name = parts.path.lstrip("/")
    if parts.scheme != "kafka" or not parts.netloc or not name:
        raise ValueError(f"is no {_FORM}")
    if "@" in parts.netloc:
        raise ValueError(f"has a user before the broker; it is {_FORM}")
    return _Topic(parts.netloc, name, dict(parse_qsl(parts.query)))
