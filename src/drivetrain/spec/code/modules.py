"""Where a module lies and what its file holds, found as an import would find it, and without importing anything."""

from __future__ import annotations

import os
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path, PurePath
from typing import Any

_STANDARD = tuple({f"{sysconfig.get_path('stdlib')}/", f"{sysconfig.get_path('platstdlib')}/"})
INSTALLED = ("/site-packages/", "/dist-packages/")
"""Folders that package managers install to."""
PACKAGE = __name__.partition(".")[0]
"""This package, which has a digest of its own: another version of it makes no other run."""


@dataclass(frozen=True)
class Module:
    """A module that an import would find: its dotted name, its file, and where its submodules are (None: it has none).

    `file` is None for a namespace, which has no code.
    """

    name: str
    file: str | None
    loader: Any
    inside: tuple[str, ...] | None

    @property
    def path(self) -> str:
        """Its file as users name it, below the folder that modules are looked up in: `package/module.py`."""
        folder, _, last = self.name.replace(".", "/").rpartition("/")
        suffix = "".join(PurePath(self.file or "").suffixes)
        if self.inside is not None:
            folder, last = f"{folder}/{last}".lstrip("/"), "__init__"
        return f"{folder}/{last}{suffix}".lstrip("/")

    @property
    def package(self) -> str:
        """What its relative imports are relative to."""
        return self.name if self.inside is not None else self.name.rpartition(".")[0]

    def read(self) -> bytes:
        """The content of its file, which may lie in a zip. Raises OSError where it cannot be read."""
        assert self.file is not None
        return self.loader.get_data(self.file)


class ModuleFinder:
    """Finds modules on a path that may not be this process's own."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path
        self._found: dict[str, Module | None] = {}

    def find(self, name: str) -> Module | None:
        """The module; None where there is none, or where it is built into the interpreter."""
        if name not in self._found:
            self._found[name] = self._look(name)
        return self._found[name]

    def _look(self, name: str) -> Module | None:
        above, _, _ = name.rpartition(".")
        if not above:
            if name in sys.builtin_module_names:
                return None
            return _on(self._path, name) or _elsewhere(name)
        package = self.find(above)
        if package is None or package.inside is None:
            return None
        return _on(package.inside, name)


def is_own(module: Module, folder: str | None = None) -> bool:
    """Whether it is a user's own code: neither of the standard library, nor installed, nor this package, nor what a
    compiler has made of code.

    What lies in the recipe's `folder` is the user's, wherever that lies.
    """
    # A folder ends as its files begin.
    where = module.file or f"{(module.inside or ('',))[0]}/"
    if module.name.partition(".")[0] == PACKAGE or where in ("built-in", "frozen") or _is_made(where):
        return False
    if folder and where.startswith(f"{folder.rstrip('/')}/"):
        return True
    return not (is_installed(where) or is_standard(where))


def _is_made(place: str) -> bool:
    """Whether a file lies where torch's compiler, or Triton, keeps what it makes: another one on every machine, and of
    code that is known. Both say in the environment where that is, torch's once it has made something."""
    kept = [os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR")]
    kept.append(str(Path.home() / ".triton"))
    return any(folder and place.startswith(f"{folder.rstrip('/')}/") for folder in kept)


def is_installed(place: str) -> bool:
    """Whether a file lies where packages are installed."""
    return any(folder in place for folder in INSTALLED)


def is_standard(place: str) -> bool:
    """Whether a file belongs to Python itself."""
    return place.startswith(_STANDARD) and not is_installed(place)


def _on(path: Sequence[str], name: str) -> Module | None:
    """The module in the first entry of a path that has it. Folders without code are one namespace, over all entries.

    `PathFinder` would do so too, but asks for the parents of a namespace among what is imported.
    """
    portions: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry or str(Path.cwd()))
        found = finder.find_spec(name) if finder and hasattr(finder, "find_spec") else None
        if found is None:
            continue
        if found.loader is not None:
            return _module(name, found)
        portions += found.submodule_search_locations or ()
    if portions:
        return Module(name, None, None, tuple(portions))
    return None


def _elsewhere(name: str) -> Module | None:
    """A module that another finder knows, as those of packages that are installed in place."""
    for finder in _others():
        found = None
        with suppress(Exception):  # what is wrong with it, the import itself will say
            found = finder.find_spec(name, None)
        if found is not None:
            return _module(name, found)
    return None


def _others() -> Iterator[Any]:
    for finder in sys.meta_path:
        if finder not in (BuiltinImporter, FrozenImporter, PathFinder) and hasattr(finder, "find_spec"):
            yield finder


def _module(name: str, spec: ModuleSpec) -> Module:
    inside = spec.submodule_search_locations
    return Module(name, spec.origin, spec.loader, None if inside is None else tuple(inside))
