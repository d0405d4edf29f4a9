"""What tests of targets share: submissions of a small recipe, and what is read back from a native request."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache

from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.launch.targets.config import settings_from
from hostile import VALUES

RECIPE = "quickstart"


def submission(overrides=(), **settings) -> Submission:
    """A job for a target called `there`; asked for again, the same one."""
    return _planned(tuple(overrides), json.dumps(settings))


@cache
def _planned(overrides: tuple[str, ...], settings: str) -> Submission:
    return plan(
        RECIPE, overrides, "there", settings_from("there", json.loads(settings)), options=StartOptions(started=1.0)
    )


def opened(parcel: str) -> NodeWork:
    """The work that a packed text carries."""
    return NodeWork.from_json(json.loads(gzip.decompress(base64.b64decode(parcel))))


def hostile() -> dict[str, str]:
    """Variables with everything in them that has broken launchers."""
    return {f"VALUE_{number}": value for number, value in enumerate(VALUES)}
