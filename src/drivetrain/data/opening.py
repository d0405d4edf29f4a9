"""From a recipe's source to one that can be read."""

from __future__ import annotations

from pathlib import Path

from drivetrain.data.recipe import Parted
from drivetrain.data.recipe import Source as SourceSettings
from drivetrain.data.source import Source
from drivetrain.data.split import parted
from drivetrain.spec.custom import Custom
from drivetrain.spec.registry import imported


def open_source(settings: SourceSettings | Custom, seed: int, cache: Path, *, by_text: bool = False) -> Source:
    """Open a source. `cache` is a JSON file of content digests, so that an unchanged file is not read again.

    `by_text`: the text of a user's own class counts in its fingerprint, as it did in runs from before code was
    recorded. Raises Failure(66) where a file is missing, 65 where its content is unusable.
    """
    if isinstance(settings, Custom):
        from drivetrain.data.dataset import MapSource  # imports torch, which token sources do without

        source = MapSource(settings, seed, by_text=by_text)
        if isinstance(settings.parted, Parted):
            return parted(source, settings.parted, settings.kind)
        return source
    opener = imported(settings.factory)
    if settings.seeded:
        return opener(settings, cache, seed)
    return opener(settings, cache)
