"""What the code is like, in figures: `make measure`, or `python benchmarks/measure.py [ROOT] [--json]`.

ROOT is a working tree of this project; this one where none is given, so that two versions can be put side by side.
`--suite` also times the tests; `--install` a fresh clone's installation for the quickstart (it needs a registry).
Lines are all of a file's; a function's parameters are counted without `self` and `cls`; its complexity is McCabe's,
with `and`, `or`, conditional expressions, comprehensions and asserts as decisions.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain.loop.step import Step

PACKAGE = "drivetrain"
MOST_LINES, MOST_PARAMETERS, MOST_COMPLEXITY = 50, 6, 15  # of a function
MOST_METHODS = 15  # of a class
FIRST, LAST = 10, 40  # the steps between which a batch's files are counted: no commit, no evaluation is due there
SHORT = f"""
budget.steps={LAST + 5} schedule.warmup.steps=1 lanes=1 batch.size=2 batch.micro=2
task.model.width=16 task.model.heads=1 task.sample.tokens=1 checkpoint.every.steps=1000
evaluate.every=null evaluate.budget.samples=2 evaluate.full_at_end=false
""".split()

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, its place below the package, text and syntax."""

    name: str
    path: str
    text: str
    nodes: list[ast.AST]


@dataclass(frozen=True)
class Function:
    """A function or method, nested ones too, and whether it is a command's (its parameters are the command line's)."""

    place: str
    lines: int
    parameters: int
    complexity: int
    command: bool


@dataclass(frozen=True)
class Class:
    """A class: its lines, and the methods it defines itself."""

    place: str
    lines: int
    methods: int


def modules(root: Path) -> list[Module]:
    """Every module of the package below this working tree."""
    source = root / "src"
    found = []
    for file in sorted((source / PACKAGE).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        text = file.read_text(encoding="utf-8")
        found.append(
            Module(name, "/".join(file.relative_to(source / PACKAGE).parts), text, list(ast.walk(ast.parse(text))))
        )
    return found


def length(node: ast.stmt) -> int:
    """A definition's lines, without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def decisions(node: ast.AST) -> int:
    """How many ways this one node adds to a function's paths."""
    match node:
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.match_case():
            return int(not isinstance(node.pattern, ast.MatchAs) or node.pattern.pattern is not None)
    return int(isinstance(node, BRANCHES))


def parameters(arguments: ast.arguments) -> int:
    """How many a caller may give; `self` and `cls` are not given."""
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def functions(module: Module) -> Iterator[Function]:
    """Every function and method of a module."""
    for node in module.nodes:
        if not isinstance(node, DEFINITIONS):
            continue
        yield Function(
            f"{module.path}:{node.lineno} {node.name}",
            length(node),
            parameters(node.args),
            1 + sum(map(decisions, ast.walk(node))),
            command=module.path.startswith("cli/") and "typer." in ast.unparse(node.args),
        )


def classes(module: Module) -> Iterator[Class]:
    """Every class of a module."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, DEFINITIONS)]
            yield Class(f"{module.path}:{node.lineno} {node.name}", length(node), len(methods))


def for_types_only(node: ast.AST) -> bool:
    """Whether this is an `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported(module: Module, names: set[str], *, typing: bool) -> set[str]:
    """Modules of ours that this one imports, inside its functions too; `typing`: those for types as well."""
    hidden = set() if typing else {inner for node in module.nodes if for_types_only(node) for inner in ast.walk(node)}
    found: set[str] = set()
    for node in module.nodes:
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & names or {str(node.module)}
    return found & names


def cycles(found: list[Module], *, typing: bool) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    names = {module.name for module in found}
    edges = {module.name: imported(module, names, typing=typing) for module in found}
    reached = {name: reachable(edges, name) for name in names}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in names}
    return sorted(sorted(group) for group in groups if group)


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """What is reached from here in one step or more."""
    seen: set[str] = set()
    ahead = set(edges[start])
    while ahead:
        name = ahead.pop()
        seen.add(name)
        ahead |= edges[name] - seen
    return seen


def comment_lines(text: str) -> int:
    """Lines that hold a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def density(found: list[Module]) -> dict[str, float]:
    """Comprehensions, conditional expressions and comment lines, in a thousand lines."""
    lines = sum(len(module.text.splitlines()) for module in found)
    nodes = [node for module in found for node in module.nodes]
    counts = {
        "comprehensions": sum(isinstance(node, COMPREHENSIONS) for node in nodes),
        "conditional expressions": sum(isinstance(node, ast.IfExp) for node in nodes),
        "comment lines": sum(comment_lines(module.text) for module in found),
    }
    return {name: round(1000 * count / lines, 1) for name, count in counts.items()}


def sizes(found: list[Module], everyone: list[Function]) -> dict[str, object]:
    """The longest file, classes and functions."""
    lines_of = {module.path: len(module.text.splitlines()) for module in found}
    longest_file = max(lines_of, key=lambda path: lines_of[path])
    every_class = [kind for module in found for kind in classes(module)]
    longest = max(every_class, key=lambda kind: kind.lines)
    busiest = max(every_class, key=lambda kind: kind.methods)
    above = most(everyone, lambda function: function.lines)
    return {
        "lines of source": sum(lines_of.values()),
        "longest file": f"{lines_of[longest_file]} lines: {longest_file}",
        "longest class": f"{longest.lines} lines, {longest.methods} methods: {longest.place}",
        "most methods": f"{busiest.methods} methods, {busiest.lines} lines: {busiest.place}",
        f"classes above {MOST_METHODS} methods": [
            f"{kind.methods}: {kind.place}" for kind in every_class if kind.methods > MOST_METHODS
        ],
        "longest function, lines": above[0],
        f"functions above {MOST_LINES} lines": over(MOST_LINES, above),
    }


def demands(everyone: list[Function]) -> dict[str, object]:
    """What functions ask of their callers, and of their readers."""
    given = most(everyone, lambda function: function.parameters)
    given_in_code = most([f for f in everyone if not f.command], lambda function: function.parameters)
    paths = most(everyone, lambda function: function.complexity)
    return {
        "most parameters, commands apart": given_in_code[0],
        f"functions above {MOST_PARAMETERS} parameters": len(over(MOST_PARAMETERS, given)),
        f"functions above {MOST_PARAMETERS} parameters, commands apart": over(MOST_PARAMETERS, given_in_code),
        "highest complexity": paths[0],
        f"functions above complexity {MOST_COMPLEXITY}": over(MOST_COMPLEXITY, paths),
    }


def most(group: list[Function], figure: Callable[[Function], int]) -> list[str]:
    """These functions with a figure of each, the highest first."""
    return [f"{figure(function)}: {function.place}" for function in sorted(group, key=figure, reverse=True)]


def over(limit: int, ranked: list[str]) -> list[str]:
    """Those of `most` whose figure is above a limit."""
    return [line for line in ranked if int(line.partition(":")[0]) > limit]


def structure(root: Path) -> dict[str, object]:
    """What the sources alone say."""
    found = modules(root)
    everyone = [function for module in found for function in functions(module)]
    return {
        **sizes(found, everyone),
        **demands(everyone),
        "import cycles at run time": [" ".join(group) for group in cycles(found, typing=False)],
        "import cycles with imports for types": [" ".join(group) for group in cycles(found, typing=True)],
        **{f"{name} per 1,000 lines": value for name, value in density(found).items()},
    }


def trace() -> list[str]:
    """Files whose functions run in the middle of a short run of the quickstart, in this process.

    That is between the updates of two steps: what reads, orders and collates the batches, trains on them, and writes
    the ledger's records. Only the loop's own thread counts: the recipe reads ahead in it, and nothing else is due.
    """
    import drivetrain

    seen: set[str] = set()
    steps = itertools.count(1)
    update = drivetrain.Task.update

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    def counting_update(task: drivetrain.Task, step: Step) -> None:
        number = next(steps)
        if number in (FIRST, LAST):
            sys.setprofile(profile if number == FIRST else None)
        update(task, step)

    drivetrain.Task.update = counting_update
    with tempfile.TemporaryDirectory() as folder:
        drivetrain.train("quickstart", SHORT, run=Path(folder) / "run", progress=False)
    package = Path(str(drivetrain.__file__)).parent
    return sorted(str(Path(name).relative_to(package)) for name in seen if Path(name).is_relative_to(package))


def batch_path(root: Path) -> list[str]:
    """`trace`, in a process of its own that imports this working tree's package."""
    environment = os.environ | {"PYTHONPATH": str(root.resolve() / "src")}
    command = [sys.executable, __file__, "--trace"]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def suite(root: Path) -> str:
    """How long the tests take here, by the suite's own clock: what it says last."""
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadgroup"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().splitlines()[-1]


def disk(folder: Path) -> int:
    """Mebibytes that this folder takes on the disk."""
    output = subprocess.run(["du", "-sm", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(output.split()[0])


def install(root: Path, stamp: str) -> dict[str, object]:
    """Seconds and mebibytes of what `make STAMP` installs in a fresh clone; torch's own are told apart."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", root, clone], check=True)
        began = time.monotonic()
        subprocess.run(["make", stamp], cwd=clone, check=True, stdout=sys.stderr)
        seconds = time.monotonic() - began
        environment = clone / ".venv"
        (torch,) = environment.glob("lib/python*/site-packages/torch")
        return {
            "installation, seconds": round(seconds),
            "installation, MiB": disk(environment),
            "of these torch's, MiB": disk(torch),
            "packages": len(list(torch.parent.glob("*.dist-info"))),
        }


def show(figures: Mapping[str, object]) -> None:
    """A table: lists are counted, and listed below."""
    for name, value in figures.items():
        listed = value if isinstance(value, list) else []
        print(f"{name:50} {len(listed) if isinstance(value, list) else value}")
        for line in listed:
            print(f"{'':50}   {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--suite", action="store_true", help="time the tests too")
    parser.add_argument("--install", nargs="?", const=".venv/.lean", metavar="STAMP", help="time an installation too")
    parser.add_argument("--trace", action="store_true", help="only what a batch passes, as JSON")
    asked = parser.parse_args()
    if asked.trace:
        print(json.dumps(trace()))
        return
    figures = structure(asked.root)
    figures["files that a batch passes"] = batch_path(asked.root)
    if asked.suite:
        figures["suite"] = suite(asked.root)
    if asked.install:
        figures |= install(asked.root, asked.install)
    if asked.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


if __name__ == "__main__":
    main()
