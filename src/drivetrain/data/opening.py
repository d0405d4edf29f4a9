"""From a recipe's source to one that can be read."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.data.recipe import Parted
from drivetrain.data.recipe import Source as SourceSettings
from drivetrain.data.source import Source
from drivetrain.data.split import parted
from drivetrain.spec.custom import Custom, found_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported
from drivetrain.spec.streams import is_stream


def open_source(settings: SourceSettings | Custom, seed: int, cache: Path, *, by_text: bool = False) -> Source:
    """Open a source. `cache` is a JSON file of content digests, so that an unchanged file is not read again.

    `by_text`: the text of a user's own class counts in its fingerprint, as it did in runs from before code was
    recorded. Raises Failure(66) where a file is missing, 65 where its content is unusable.
    """
    if isinstance(settings, Custom):
        if is_stream(found_custom(settings)):
            return _stream(settings, seed)
        from drivetrain.data.dataset import MapSource  # imports torch, which token sources do without

        source = MapSource(settings, seed, by_text=by_text)
        if isinstance(settings.parted, Parted):
            return parted(source, settings.parted, settings.kind)
        return source
    opener = imported(settings.factory)
    if settings.seeded:
        return opener(settings, cache, seed)
    return opener(settings, cache)


def _stream(settings: Custom, seed: int) -> Source:
    """Raises Failure(78) where a part of it is wanted: its samples have no numbers before they are read."""
    from drivetrain.data.stream import StreamSource, own_opener

    if isinstance(settings.parted, Parted):
        hint = "leave `parted` out, and let the stream give the part that is wanted"
        raise Failure(Exit.BAD_RECIPE, f"{settings.kind} is a stream, which has no parts", hint)
    given = json.dumps([settings.kind, settings.settings], sort_keys=True, default=repr)
    return StreamSource(own_opener(settings), settings.kind, seed, given, settings.folder)
