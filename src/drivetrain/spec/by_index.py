"""Why something cannot be a source: a source has a length, and items by index."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from drivetrain.spec.code.modules import Module, is_own

HINT = (
    "a source needs __len__ and __getitem__, so that any sample can be read again: read the stream once into files and "
    "take one of the shipped kinds (docs/data.md), or give a class that looks items up"
)
"""What to do instead of a stream."""


def unlike_source(found: Any, module: str) -> str:
    """What something of a module is, in words, if it is data of a kind but no source; empty where it is one, or where
    it is something else altogether, such as a function: whether that is a refusal is for others to say."""
    if inspect.isgeneratorfunction(found) or inspect.isgenerator(found):
        return "a generator, which has no length and gives items in one order only"
    if inspect.ismodule(found) or inspect.isroutine(found):
        return ""
    if not inspect.isclass(found):
        return f"an object ({type(found).__name__}), not a class: name the class, and its arguments beside `kind`"
    if any(base.__name__ == "IterableDataset" for base in found.__mro__):
        return "an IterableDataset, which has no items by index"
    if hasattr(found, "__iter__") and not hasattr(found, "__getitem__"):
        return "a class that can only be iterated over"
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(found, name)]
    if not missing:
        return ""
    if len(missing) == 1 or _is_users(module):
        return f"a class without {' and '.join(missing)}"
    return ""


def _is_users(module: str) -> bool:
    """Whether a module is the user's own, and not one such as `subprocess`."""
    if module in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return is_own(Module(module, file or "", None, None))
