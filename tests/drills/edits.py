"""Seeded edits of a task, of what it imports, of the files that it declares, and of its data."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FILES = {
    "edited.py": '''"""A task that is edited."""
import torch
from torch import nn

from drivetrain import Task
from parts.net import build
from parts.loss import distance


class Rows:
    """Vectors."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([line_value(index, place) for place in range(4)])


def line_value(index, place):
    values = open(FOLDER + "/data.txt").read().split()
    return float(values[(index * 4 + place) % len(values)])


def unused(a, b=2):
    return a + b


class Fit(Task):
    """Regression."""

    code_files = ("arch.json", "words")

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def networks(self):
        return {"model": build(FOLDER)}

    def loss(self, nets, batch):
        # how far it is
        return distance(nets["model"](batch).squeeze(1), self.scale * batch.sum(1))
''',
    "parts/__init__.py": "",
    "parts/net.py": '''"""Networks."""
import json

from torch import nn

from .widths import DEPTH, width


def build(folder):
    """As many layers as the architecture file says, of as many units."""
    told = json.load(open(folder + "/arch.json"))
    layers = []
    for _ in range(DEPTH):
        layers += [nn.Linear(4, width(told)), nn.ReLU(), nn.Linear(width(told), 4)]
    return nn.Sequential(*layers, nn.Linear(4, 1))
''',
    "parts/widths.py": '''"""Numbers."""

DEPTH = 2
LEAST = 3


def width(told):
    if told["width"] < LEAST:
        raise ValueError("too narrow")
    return told["width"]
''',
    "parts/loss.py": '''def distance(one, other):
    """The mean of squares."""
    return (one - other).square().mean()


def other_distance(one, other):
    return (one - other).abs().mean()
''',
    "arch.json": '{"width": 8, "note": "as it was"}\n',
    "words/first.txt": "one\ntwo\n",
}
SOURCES = tuple(name for name in FILES if name.endswith(".py"))


@dataclass(frozen=True)
class Edit:
    """One edit: what it is called, and whether the code does something else after it."""

    name: str
    told: bool
    apply: Callable[[Path, random.Random], bool]
    """Changes a file below the folder; False where this seed has found nothing to change."""


def write(folder: Path) -> None:
    """The files as they are before an edit."""
    for name, text in FILES.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("FOLDER", repr(str(folder))))
    values = random.Random(0)
    (folder / "data.txt").write_text(" ".join(f"{values.random():.3f}" for _ in range(256)))


def recipe() -> dict:
    """Trains the task for 20 steps."""
    return {
        "name": "edited",
        "task": {"kind": "edited:Fit"},
        "data": {"train": {"sources": [{"name": "rows", "kind": "edited:Rows"}]}},
        "batch": {"size": 8},
        "budget": {"steps": 20},
        "checkpoint": {"every": {"steps": 10}},
        "launch": {"threads": 1},
    }


def _source(folder: Path, seed: random.Random) -> Path:
    return folder / seed.choice([name for name in SOURCES if FILES[name]])


def _comment(folder: Path, seed: random.Random) -> bool:
    place = _source(folder, seed)
    lines = place.read_text().splitlines()
    # Not within a text of several lines: there it would be part of it. All texts here have one.
    at = seed.randrange(len(lines))
    lines.insert(at, " " * seed.randrange(8) + "# " + "".join(seed.choices("abc #'\"é", k=12)))
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return True


def _formatting(folder: Path, seed: random.Random) -> bool:
    place = _source(folder, seed)
    text = ast.unparse(ast.parse(place.read_text()))
    for _ in range(seed.randrange(1, 4)):
        text = text.replace("\n\n", "\n\n\n", 1).replace("(", "( ", seed.randrange(3)).replace(" = ", "  =  ", 1)
    place.write_text(text + "\n" * seed.randrange(3))
    return True


def _docstring(folder: Path, seed: random.Random) -> bool:
    place = _source(folder, seed)
    tree = ast.parse(place.read_text())
    owners = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    owner = seed.choice(owners)
    text = ast.Expr(ast.Constant("".join(seed.choices("words and ", k=20))))
    if ast.get_docstring(owner) is not None and seed.random() < 0.7:
        owner.body[0] = text
    else:
        owner.body.insert(0, text)
    future = place.read_text()
    place.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return place.read_text() != future


def _line_ends(folder: Path, seed: random.Random) -> bool:
    place = _source(folder, seed)
    place.write_bytes(place.read_bytes().replace(b"\n", b"\r\n"))
    return True


def _touched(folder: Path, seed: random.Random) -> bool:
    place = folder / seed.choice(list(FILES))
    place.write_bytes(place.read_bytes())
    return True


def _not_imported(folder: Path, seed: random.Random) -> bool:
    (folder / "parts" / f"new_{seed.randrange(9)}.py").write_text("x = 1\n")
    return True


def _number(folder: Path, seed: random.Random) -> bool:
    return _changed(folder, seed, ast.Constant, lambda node: type(node.value) in (int, float), _another_number)


def _another_number(node: ast.Constant, seed: random.Random) -> None:
    node.value += seed.choice([1, 2, 0.5])


def _operator(folder: Path, seed: random.Random) -> bool:
    def swap(node: ast.BinOp, seed: random.Random) -> None:
        others = [kind for kind in (ast.Add, ast.Sub, ast.Mult) if not isinstance(node.op, kind)]
        node.op = seed.choice(others)()

    return _changed(folder, seed, ast.BinOp, lambda _: True, swap)


def _name(folder: Path, seed: random.Random) -> bool:
    """A function gets another name, everywhere in its file: it does the same, and is not the same code."""
    place = _source(folder, seed)
    names = [node.name for node in ast.walk(ast.parse(place.read_text())) if isinstance(node, ast.FunctionDef)]
    local = [name for name in names if name in ("line_value", "unused", "other_distance")]
    if not local:
        return False
    name = seed.choice(local)
    place.write_text(place.read_text().replace(name, f"{name}_{seed.randrange(9)}"))
    return True


def _moved(folder: Path, seed: random.Random) -> bool:
    """A function stands at another place of its file: what is defined first may matter."""
    place = _source(folder, seed)
    tree = ast.parse(place.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not functions or len(tree.body) < 3:
        return False
    moved = seed.choice(functions)
    at = tree.body.index(moved)
    tree.body.remove(moved)
    places = [place for place in range(len(tree.body) + 1) if place not in (at, 0)]
    tree.body.insert(seed.choice(places), moved)
    place.write_text(ast.unparse(tree))
    return True


def _statement(folder: Path, seed: random.Random) -> bool:
    def insert(node: ast.FunctionDef, seed: random.Random) -> None:
        node.body.insert(0, ast.parse(f"extra = {seed.randrange(99)}").body[0])

    return _changed(folder, seed, ast.FunctionDef, lambda _: True, insert)


def _default(folder: Path, seed: random.Random) -> bool:
    return _changed(
        folder, seed, ast.arguments, lambda node: bool(node.defaults), lambda node, seed: node.defaults.pop()
    )


def _declared(folder: Path, seed: random.Random) -> bool:
    told = {"width": 8, "note": "".join(seed.choices("abc", k=5))}
    (folder / "arch.json").write_text(json.dumps(told))
    return True


def _declared_formatting(folder: Path, seed: random.Random) -> bool:
    """Nobody knows what a declared file's spaces mean: they count."""
    place = folder / "arch.json"
    place.write_text(" " * seed.randrange(1, 9) + place.read_text())
    return True


def _declared_new(folder: Path, seed: random.Random) -> bool:
    (folder / "words" / f"more_{seed.randrange(9)}.txt").write_text("three\n")
    return True


def _imports_more(folder: Path, seed: random.Random) -> bool:
    (folder / "parts" / "more.py").write_text(f"x = {seed.randrange(99)}\n")
    place = _source(folder, seed)
    place.write_text(place.read_text() + "\nimport parts.more\n")
    return True


def _renamed_file(folder: Path, seed: random.Random) -> bool:
    (folder / "parts" / "widths.py").rename(folder / "parts" / "sizes.py")
    place = folder / "parts" / "net.py"
    place.write_text(place.read_text().replace(".widths", ".sizes"))
    return True


def _changed(folder, seed, kind, suits, change) -> bool:
    """Change one node of a kind in some source."""
    place = _source(folder, seed)
    tree = ast.parse(place.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, kind) and suits(node)]
    if not nodes:
        return False
    change(seed.choice(nodes), seed)
    place.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return True


EDITS = (
    Edit("a comment", False, _comment),
    Edit("formatting", False, _formatting),
    Edit("a docstring", False, _docstring),
    Edit("line ends", False, _line_ends),
    Edit("the same again", False, _touched),
    Edit("a file that nobody imports", False, _not_imported),
    Edit("a number", True, _number),
    Edit("an operator", True, _operator),
    Edit("a renamed function", True, _name),
    Edit("a moved function", True, _moved),
    Edit("a statement more", True, _statement),
    Edit("a default less", True, _default),
    Edit("a declared file", True, _declared),
    Edit("a declared file's formatting", True, _declared_formatting),
    Edit("a new file in a declared folder", True, _declared_new),
    Edit("an import more", True, _imports_more),
    Edit("a renamed file", True, _renamed_file),
)


def edited(folder: Path, number: int) -> Edit:
    """The files with the edit of this number; the seeds are tried until one finds something to change."""
    edit, seed = EDITS[number % len(EDITS)], number
    while True:
        write(folder)
        if edit.apply(folder, random.Random(seed)):
            return edit
        seed += 1000
