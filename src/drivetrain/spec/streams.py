"""Streams: sources that give their samples one after the other, and what each can do to go on where it was."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, get_origin, get_type_hints

from drivetrain.spec.code.modules import Module, is_own

How = Literal["seek", "state", "count"]
"""How a stream is brought to where it was: it begins anywhere, it tells a state, or what was read is read again."""
START, LANE, LANES = "start", "lane", "lanes"
GIVEN = (START, LANE, LANES)
"""What a stream that is a function may take, and no recipe gives: the number of its first item, and its part of how
many."""
HINT = (
    "a source needs __len__ and __getitem__, so that any sample can be read by its number; or it is a stream, which "
    "has __iter__, or is a generator function (docs/data.md)"
)
"""What would be one."""
PROMISES: dict[How, str] = {
    "seek": "a stream that begins at any sample: a resume reads on exactly there",
    "state": "a stream that tells its state: a resume reads on exactly there",
    "count": "a stream that is counted: a resume reads again what was read, and goes on with the same samples only if "
    "it repeats itself; a `start`, or state_dict and load_state_dict, would make it exact",
}


def is_stream(found: Any) -> bool:
    """Whether what a recipe names is a stream: a generator function, a function that says by its annotation that it
    returns an iterable, or a class that is iterated over and looks nothing up by number."""
    if inspect.isfunction(found):
        return inspect.isgeneratorfunction(found) or _returns_iterable(found)
    if not inspect.isclass(found) or not hasattr(found, "__iter__"):
        return False
    # torch's IterableDataset inherits a __getitem__ that only raises.
    by_number = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    return not by_number or any(base.__name__ == "IterableDataset" for base in found.__mro__)


def ability(found: Any) -> How:
    """What a stream can do: of a function, of a class, or of one of its objects."""
    if inspect.isroutine(found):
        return "seek" if START in inspect.signature(found).parameters else "count"
    if hasattr(found, "seek"):
        return "seek"
    return "state" if hasattr(found, "state_dict") and hasattr(found, "load_state_dict") else "count"


def takes_lanes(found: Any) -> bool:
    """Whether a stream can be read in parts."""
    if inspect.isroutine(found):
        return {LANE, LANES} <= inspect.signature(found).parameters.keys()
    return callable(getattr(found, "shard", None))


def promise(found: Any) -> str:
    """What a resume can hold of a stream, in words."""
    if inspect.isfunction(found) and not inspect.isgeneratorfunction(found) and ability(found) == "count":
        return "a stream; what it returns says when it is opened how a resume goes on"
    return PROMISES[ability(found)]


def unlike_source(found: Any, module: str) -> str:
    """What something of a module is, in words, if it is data of a kind but no source; empty where it is one, or where
    it is something else altogether, such as a function: whether that is a refusal is for others to say."""
    if wrong := unlike_object(found):
        return wrong
    if inspect.ismodule(found) or inspect.isroutine(found):
        return ""
    if isinstance(found, partial):
        return "a functools.partial that no recipe can write: give the function as `kind`, and its arguments beside it"
    if not inspect.isclass(found):
        return f"an object ({type(found).__name__}), not a class: name the class, and its arguments beside `kind`"
    missing = [name for name in ("__len__", "__getitem__") if not _has(found, name)]
    if not missing or is_stream(found):
        return ""
    if len(missing) == 1 or _is_users(module):
        return f"a class without {' and '.join(missing)}"
    return ""


def _has(found: type, name: str) -> bool:
    """Whether a class has a method of its own: torch's Dataset has a __getitem__ that only raises."""
    method = getattr(found, name, None)
    torchs = getattr(method, "__qualname__", "") == f"Dataset.{name}"
    return method is not None and not (torchs and method.__module__.startswith("torch."))


def unlike_object(found: Any) -> str:
    """What an object is, in words, if it is iterated over, but is no source; empty for any other."""
    if inspect.isgenerator(found):
        return "a generator that has begun: give the function that makes it"
    if hasattr(found, "__next__") and not inspect.isclass(found):
        return "an iterator, which is over after one pass: give the class or function that makes it"
    names = {f"{base.__module__}.{base.__name__}" for base in type(found).__mro__}
    if "torch.utils.data.dataloader.DataLoader" in names:
        return "a DataLoader, which makes batches: give its dataset; batches, order and workers are the recipe's"
    return ""


def _returns_iterable(found: Any) -> bool:
    try:
        given = get_type_hints(found).get("return")
    except (NameError, TypeError, AttributeError):
        return False
    kind = get_origin(given) or given
    return inspect.isclass(kind) and kind not in (str, bytes) and issubclass(kind, Iterable)


def _is_users(module: str) -> bool:
    """Whether a module is the user's own, and not one such as `subprocess`."""
    if module in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return is_own(Module(module, file or "", None, None))
