"""YAML and JSON text as a tree."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.tree import Mistake, Origin, Path_, RecipeMistakes, Tree, TreeNode, Value, fitting

_MOST_NODES = 100_000
_DEEPEST = 64
_PREFIX = "tag:yaml.org,2002:"
_TAGS = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))


class _Loader(yaml.SafeLoader):
    """Safe YAML whose plain words mean what they look like.

    `1e-3` is a number. `010`, `1:30` and `2020-01-01`, which YAML 1.1 reads as 8, 90 and a date, are words.
    """

    # Emptied, not extended: PyYAML's own would still take `1:30` for a number.
    yaml_implicit_resolvers = {}


for _name, _pattern, _first in (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?i:yes|no|true|false|on|off)", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?\.(?i:inf)|\.(?i:nan)", "-+."),
):
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(rf"(?:{_pattern})\Z"), list(_first))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that another YAML, or the loader above, would read as something else."""


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _regexp in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _regexp, [_first])


def _one_line(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if "\n" in text else None
    return dumper.represent_scalar(f"{_PREFIX}str", text, style=style)


_Dumper.add_representer(str, _one_line)


def flow(value: Any) -> str:
    """Plain data as YAML in one line, which `parse` reads as the same."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("\n").removesuffix("\n...")


def parse_file(path: Path, layer: str, mistakes: list[Mistake]) -> TreeNode:
    """The tree of a YAML or JSON file; what is wrong with it as text is added to `mistakes`.

    Raises RecipeMistakes where it is no mapping of keys to values, Failure(66) where it is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(
            Exit.INPUT_MISSING, f"no recipe at {path}", "`drivetrain recipe list` names the shipped ones"
        ) from None
    except (UnicodeDecodeError, OSError) as error:
        raise Failure(Exit.BAD_RECIPE, f"{path} cannot be read: {error}", "a recipe is UTF-8 text") from error
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # tabs may indent JSON, not YAML; neither has them inside a string
    tree = parse(text, Origin(layer, str(path), 1), mistakes)
    if not isinstance(tree, TreeNode) or not isinstance(tree.items, dict):
        raise RecipeMistakes([*mistakes, Mistake((), "a recipe is a mapping of keys to values", tree.origin)])
    return tree


def parse(text: str, origin: Origin, mistakes: list[Mistake], path: Path_ = ()) -> Tree:
    """The tree of a YAML text that stands at `path`; lines are counted where the origin has a file.

    What is wrong is added to `mistakes`. Raises RecipeMistakes where no tree can be made of it.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return TreeNode({}, origin, {})
            return _Builder(loader, origin, mistakes).build(node, path)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line, problem = text[: error.position].count("\n") + 1, f"a forbidden character, #x{error.character:04x}"
    except yaml.YAMLError as error:
        line, problem = 1, str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            problem = error.problem or problem
            if error.problem_mark:
                line = error.problem_mark.line + 1
    except RecursionError:
        line, problem = 1, "it is nested too deeply"
    raise RecipeMistakes([*mistakes, Mistake((), f"not YAML: {problem}", _at(origin, line))]) from None


class _Builder:
    """Builds the tree of one text. Bounded in size and depth, since aliases may multiply or contain themselves."""

    def __init__(self, loader: _Loader, origin: Origin, mistakes: list[Mistake]) -> None:
        self._loader = loader
        self._origin = origin
        self._mistakes = mistakes
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path_) -> Tree:
        """The tree of a node."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise yaml.YAMLError(f"aliases blow it up beyond {_MOST_NODES:,} values")
        if len(path) > _DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {_DEEPEST} levels, or an alias contains itself")
        origin = self._place(node)
        if not self._plain(node, path):
            return Value(None, origin)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, origin)
        if isinstance(node, yaml.SequenceNode):
            return TreeNode([self.build(part, (*path, index)) for index, part in enumerate(node.value)], origin)
        try:
            value = self._loader.construct_object(node)
        except (ValueError, KeyError):  # `!!int x`, or more digits than Python reads
            self._mistakes.append(Mistake(path, f"{str(node.value)[:40]!r} is not a value of its type", origin))
            value = None
        return Value(fitting(value, path, origin, self._mistakes), origin)

    def _mapping(self, node: yaml.MappingNode, path: Path_, origin: Origin) -> TreeNode:
        items: dict[str, Tree] = {}
        keys: dict[str, Origin] = {}
        below: list[Tree] = []
        for key_node, value_node in node.value:
            at = self._place(key_node)
            if key_node.tag == _PREFIX + "merge":
                below.append(self.build(value_node, (*path, "<<")))
            elif not isinstance(key_node, yaml.ScalarNode):
                self._mistakes.append(Mistake(path, "a key is a word", at))
            elif self._plain(key_node, path):
                # As it is written: a key that looks like a number or a truth is a word, too.
                key = fitting(key_node.value, path, at, self._mistakes)
                if key in items:
                    first = f"; the first is in line {keys[key].line}" if at.file else ""
                    self._mistakes.append(Mistake((*path, key), f"is given twice{first}", at))
                items[key], keys[key] = self.build(value_node, (*path, key)), at
        # Last, since a mapping's own keys go before those that `<<` merges into it, wherever it stands.
        for tree in below:
            parts = [tree]
            if isinstance(tree, TreeNode) and isinstance(tree.items, list):
                parts = tree.items
            for part in parts:
                if not isinstance(part, TreeNode) or not isinstance(part.items, dict):
                    self._mistakes.append(Mistake((*path, "<<"), "merges mappings only", part.origin))
                    continue
                items = part.items | items
                keys = dict(part.keys or {}) | keys
        return TreeNode(items, origin, keys)

    def _plain(self, node: yaml.Node, path: Path_) -> bool:
        """Whether a node has a tag that can do no more than hold data; noted as a mistake where not."""
        if node.tag in _TAGS:
            return True
        self._mistakes.append(Mistake(path, f"the YAML tag {node.tag!r} is refused", self._place(node), refused=True))
        return False

    def _place(self, node: yaml.Node) -> Origin:
        return _at(self._origin, node.start_mark.line + 1)


def _at(origin: Origin, line: int) -> Origin:
    if not origin.file:
        return origin
    return Origin(origin.layer, origin.file, line, origin.text)
