"""The user's own code that a recipe needs: the modules of its own kinds, all that they import, and files they declare.

Static, so that a run's name can follow from it before anything is imported. What is only imported by a name that is
made while it trains is found once it is loaded (`late`).
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from drivetrain.spec.affects import Affects, bits_digest, customs, stronger
from drivetrain.spec.code.cache import SyntaxCache
from drivetrain.spec.code.canonical import DIGITS, Import, ModuleSyntax, bytes_digest
from drivetrain.spec.code.modules import Module, ModuleFinder, is_installed, is_own
from drivetrain.spec.code.notebook import source_in_memory
from drivetrain.spec.custom import Custom, module_path
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import is_object, origin_of
from drivetrain.spec.recipe import Recipe

LARGEST = 8 << 20
"""Bytes of a file up to which its content is held, so that it can be kept."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class CodeFile:
    """A file of code: 16 hex digits over what it does, SHA-256 of its content, what it affects, where it lies here.

    `content` is None where it is larger than 8 MiB.
    """

    digest: str
    sha256: str
    affects: Affects
    place: str
    content: bytes | None = field(repr=False)


@dataclass(frozen=True)
class UserCode:
    """All of it, by names that are the same wherever it lies: `package/module.py`, `./declared.json`.

    `kinds` are the recipe's own, and `folder` is where their modules are looked up first. `installed` are the packages
    that they import, by their top-level names; `unread` the modules of which no source can be had, and what else of it
    nothing is known of.
    """

    files: Mapping[str, CodeFile] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    folder: str | None = None
    installed: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """12 hex digits over what decides bits; empty where nothing of the user's own does."""
        return digest_of(self.files)


class Digested(Protocol):
    """A file of code, found now or told by a ledger."""

    @property
    def digest(self) -> str:
        """Of what it does."""
        ...

    @property
    def affects(self) -> str:
        """What it decides: `bits`, `cost` or `nothing`."""
        ...


def digest_of(files: Mapping[str, Digested]) -> str:
    """12 hex digits over what those files do that decide bits; empty where none does."""
    bits = {name: file.digest for name, file in sorted(files.items()) if file.affects == "bits"}
    if not bits:
        return ""
    return hashlib.sha256(json.dumps(bits).encode()).hexdigest()[:12]


def run_digest(recipe: Recipe, code: UserCode) -> str:
    """12 hex digits of what makes a run: the recipe's values that affect bits, and the user's code that does."""
    recipe_digest = bits_digest(recipe)
    if not code.digest:
        return recipe_digest
    return hashlib.sha256(f"{recipe_digest} {code.digest}".encode()).hexdigest()[:12]


def scan(recipe: Recipe, folder: str | None = None) -> UserCode:
    """The code of a recipe's own kinds as it is on the disk now; nothing of it is imported.

    `folder` is where its modules are looked up first, by default the recipe's own. Raises Failure: 66 where a declared
    file is not there, 78 where one is named by an argument that the recipe does not give, or by no literal.
    """
    roots = list(customs(recipe))
    if not roots:
        return UserCode()
    importlib.invalidate_caches()  # a file may be newer than what was last seen of its folder
    found = _Scan(folder or roots[0][0].folder, roots)  # all lie in the recipe's folder
    for custom, affects in roots:
        found.add(custom, affects)
    found.cache.save()
    kinds = tuple(dict.fromkeys(custom.kind for custom, _ in roots))
    return UserCode(found.files, kinds, found.folder, frozenset(found.installed), tuple(sorted(found.unread)))


def late(code: UserCode, loaded: Collection[str]) -> dict[str, CodeFile]:
    """The files of the user's own modules among the `loaded` ones that `code` does not have. They may decide bits."""
    files: dict[str, CodeFile] = {}
    for name in sorted(loaded):
        module = _loaded(name)
        if module is None or module.file is None or not is_own(module, code.folder):
            continue
        known = code.files.get(module.path)
        if known is not None and known.place == module.file:
            continue
        # `bits`, since nobody knows what loaded it: too much is refused rather than too little.
        file = _file_of(module, "bits", SyntaxCache())
        if file is not None:
            # Another file of that name was found at the start: this one is told by its place.
            files[module.path if known is None else module.file] = file
    return files


def files_today(code: UserCode, places: Mapping[str, str]) -> dict[str, CodeFile]:
    """The files that were found now, and those that once came late and are still there.

    `places` says of the latter, by name, where they lay. What lies elsewhere now, as on another machine, is looked up
    by its name.
    """
    files = dict(code.files)
    for name, place in places.items():
        # In this order: what the scan has found is what will run; the old place is a guess, and the name alone a weaker
        # one.
        file = files.get(name) or _at(place) or _called(name, code.folder)
        if file is not None:
            files[name] = file
    return files


def _at(place: str) -> CodeFile | None:
    """The file that came late and lay at this place."""
    try:
        content = Path(place).read_bytes()
    except OSError:
        return None
    return _file(content, _digest(place, content, SyntaxCache()), "bits", place)


def _called(name: str, folder: str | None) -> CodeFile | None:
    """The module's file that has this name below the places where modules are looked up."""
    dotted = name.partition(".")[0].removesuffix("/__init__").replace("/", ".")
    module = ModuleFinder(module_path(folder)).find(dotted)
    if module is None or module.file is None:
        return None
    return _file_of(module, "bits", SyntaxCache())


def _loaded(name: str) -> Module | None:
    """A module that this process has imported, if it came from a file."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    inside = spec.submodule_search_locations
    return Module(name, spec.origin, spec.loader, None if inside is None else tuple(inside))


class _Scan:
    """One scan. What is reached from two roots affects what the stronger of them does."""

    def __init__(self, folder: str | None, roots: Sequence[tuple[Custom, Affects]]) -> None:
        # A class may be reached from a kind that has other arguments than its own.
        self._arguments = {key: value for custom, _ in roots for key, value in custom.settings.items()}
        self.folder = folder
        self.files: dict[str, CodeFile] = {}
        self.installed: set[str] = set()
        self.unread: set[str] = set()
        self.cache = SyntaxCache(folder or str(Path.cwd()))
        self._read: dict[str, CodeFile | None] = {}
        self._finder = ModuleFinder(module_path(folder))

    def add(self, custom: Custom, affects: Affects) -> None:
        """The modules that a kind comes from, and the files that its classes declare."""
        kind = custom.kind
        if is_object(kind):
            kind = origin_of(kind)
            if kind is None:  # only the process that has the object knows
                self.unread.add(custom.kind)
                return
        module, _, name = kind.partition(":")
        seen: set[str] = set()
        # By hand and not by recursion: user code may import in circles, and as deep as it likes.
        waiting = list(_with_packages(module))
        if waiting == ["__main__"]:
            waiting = self._add_main(name, custom, affects)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            module = self._own(name)
            if module is None or module.file is None:
                continue
            file = self._file(module)
            if file is None:
                self.unread.add(name)
                continue
            self._keep(module.path, replace(file, affects=affects))
            if is_source(module.file):
                syntax = self.cache.read(file.content or b"")
                waiting += _imported(syntax.imports, module.package)
                beside = _Beside(Path(module.file), PurePosixPath(module.path).parent)
                for path, declared in _declared(beside, syntax, self._arguments | dict(custom.settings), affects):
                    self._keep(path, declared)

    def _own(self, name: str) -> Module | None:
        """The module where it is the user's own. What is installed is kept by its package's name."""
        module = self._finder.find(name)
        if module is None:
            return None
        if is_own(module, self.folder):
            return module
        if is_installed(module.file or ""):
            self.installed.add(name.partition(".")[0])
        return None

    def _file(self, module: Module) -> CodeFile | None:
        """Read once, though several roots may reach it."""
        if module.name not in self._read:
            self._read[module.name] = _file_of(module, "bits", self.cache)
        return self._read[module.name]

    def _keep(self, path: str, file: CodeFile) -> None:
        known = self.files.get(path)
        if known is None or stronger(known.affects, file.affects) != known.affects:
            self.files[path] = file

    def _add_main(self, name: str, custom: Custom, affects: Affects) -> list[str]:
        """A class of the script that runs, or of a notebook; what it imports."""
        main = sys.modules["__main__"]
        place = getattr(main, "__file__", None)
        if place is not None and Path(place).is_file():
            content, path = Path(place).read_bytes(), f"./{Path(place).name}"
        else:
            source = source_in_memory(vars(main), name)
            self.unread |= source.unread
            content, path, place = source.text.encode(), "__main__.py", ""
        syntax = self.cache.read(content)
        self._keep(path, _file(content, syntax.digest, affects, place))
        beside = _Beside(Path(place), PurePosixPath())
        for path, declared in _declared(beside, syntax, self._arguments | dict(custom.settings), affects):
            self._keep(path, declared)
        return list(_imported(syntax.imports, ""))


def _imported(imports: Collection[Import], package: str) -> Iterator[str]:
    """The modules that imports may load."""
    for one in imports:
        base = one.module
        if one.level:
            above = package.rsplit(".", one.level - 1)[0] if one.level > 1 else package
            base = f"{above}.{one.module}".strip(".")
        if not base:  # a relative import where there is no package: it raises
            continue
        yield from _with_packages(base)
        yield from (f"{base}.{name}" for name in one.names if name != "*")


def _with_packages(name: str) -> Iterator[str]:
    """A module after the packages that it is in: importing it runs these, too."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def is_source(place: str) -> bool:
    """Whether a file is Python source."""
    return place.endswith((".py", ".pyw"))


def _file_of(module: Module, affects: Affects, cache: SyntaxCache) -> CodeFile | None:
    """The file of a module; None where it cannot be read."""
    assert module.file is not None
    try:
        content = module.read()
    except (OSError, AttributeError):  # a loader of the user's own may have nothing to read
        return None
    return _file(content, _digest(module.file, content, cache), affects, module.file)


def _digest(place: str, content: bytes, cache: SyntaxCache) -> str:
    return cache.read(content).digest if is_source(place) else bytes_digest(content)


def _file(content: bytes, digest: str, affects: Affects, place: str) -> CodeFile:
    return CodeFile(digest, hashlib.sha256(content).hexdigest(), affects, place, content)


@dataclass(frozen=True)
class _Beside:
    """Where files are declared: the module's file, and its folder below the place that modules are looked up in."""

    file: Path
    name: PurePosixPath

    def name_of(self, text: str) -> str:
        """A declared file's name: two modules may each have one of the same."""
        return f"./{self.name / text}"


def _below(folder: Path) -> list[str]:
    """The regular files below a folder, by their path from there; links are followed, each folder is visited once."""
    found: list[str] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        # Compiled code follows from the sources, and holds times that would change the digest.
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if os.path.isfile(os.path.join(place, name)):
                found.append(os.path.relpath(os.path.join(place, name), folder))
    return sorted(found)


def _declared(
    beside: _Beside, syntax: ModuleSyntax, arguments: Mapping[str, Any], affects: Affects
) -> Iterator[tuple[str, CodeFile]]:
    """The files in the `code_files` of a module's classes: beside the module's file, or where an argument of the recipe
    says, seen from the working folder, as `open` would take it."""
    for owner, texts in syntax.declared:
        if texts is None:
            cause = f"{beside.file}: {owner}.code_files is no literal list of names: nothing is imported to read it"
            hint = "write the names out; '{argument}' stands for one that the recipe gives"
            raise Failure(Exit.BAD_RECIPE, cause, hint)
        for text in texts:
            if text.startswith("{") and text.endswith("}"):
                yield from _given(text[1:-1], owner, arguments, affects)
            else:
                yield from _read(beside.name_of(text), beside.file.parent / text, owner, affects)


def _given(argument: str, owner: str, arguments: Mapping[str, Any], affects: Affects) -> Iterator[tuple[str, CodeFile]]:
    if argument not in arguments:
        cause = f"{owner}.code_files names the argument {argument!r}, which the recipe does not give"
        raise Failure(Exit.BAD_RECIPE, cause, "give it in the recipe; null: there is no such file")
    given = arguments[argument]
    for path in given if isinstance(given, (list, tuple)) else [given]:
        if isinstance(path, str):
            yield from _read(f"./{path}", Path(path), owner, affects)
        elif path is not None:
            cause = f"{owner}.code_files names the argument {argument!r}, which is no path: {path!r}"
            raise Failure(Exit.BAD_RECIPE, cause, "give the path of a file or a folder")


def _read(name: str, path: Path, owner: str, affects: Affects) -> Iterator[tuple[str, CodeFile]]:
    """A declared file, or all files in a declared folder, but for compiled ones: Python makes these by itself."""
    content, digest = b"", hashlib.sha256()
    try:
        if path.is_dir():
            for inner in _below(path):
                yield from _read(f"{name.rstrip('/')}/{inner}", path / inner, owner, affects)
            return
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")  # a pipe would be waited for
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                content += block if len(content) <= LARGEST else b""
    except (OSError, ValueError) as error:
        cause = f"{owner}.code_files: {str(path)!r} cannot be read: {getattr(error, 'strerror', error)}"
        raise Failure(Exit.INPUT_MISSING, cause, "see that it is there, or take it out") from error
    sha = digest.hexdigest()
    yield name, CodeFile(sha[:DIGITS], sha, affects, str(path), content if len(content) <= LARGEST else None)
