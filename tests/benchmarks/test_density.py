"""Rules of CONTRIBUTING.md that no linter knows, held here: how dense, long and demanding our code may be."""

import ast
from pathlib import Path

import pytest

import measure

ROOT = Path(__file__).parents[2]
_OPTIONS = "its parameters are the options that a user names, as on the command line"
EXCUSED = {"api.py train": _OPTIONS, "api.py predict": _OPTIONS, "api.py generate": _OPTIONS}
pytestmark = pytest.mark.xdist_group("density")


@pytest.fixture(scope="module")
def modules():
    """Parsed where they are tested: each worker imports this file, to collect."""
    return measure.modules(ROOT)


@pytest.fixture(scope="module")
def functions(modules):
    return [function for module in modules for function in measure.functions(module)]


def name_of(function):
    """Its place without the line's number, which changes."""
    path, name = function.place.split(" ")
    return f"{path.partition(':')[0]} {name}"


def test_a_statement_has_one_comprehension_or_conditional_expression_at_most(modules):
    dense = []
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, ast.stmt) or hasattr(node, "body") or isinstance(node, ast.Match):
                continue
            parts = [part for part in ast.walk(node) if isinstance(part, (*measure.COMPREHENSIONS, ast.IfExp))]
            if len(parts) > 1:
                dense.append(f"{module.path}:{node.lineno}")
    assert not dense


@pytest.mark.parametrize(
    ("figure", "most"),
    [
        ("lines", measure.MOST_LINES),
        ("complexity", measure.MOST_COMPLEXITY),
        ("parameters", measure.MOST_PARAMETERS),
    ],
)
def test_a_function_is_short_plain_and_asks_for_little(functions, figure, most):
    above = [function for function in functions if getattr(function, figure) > most]
    if figure == "parameters":  # a command's are the command line's
        above = [function for function in above if not function.command]
    assert {name_of(function) for function in above} <= EXCUSED.keys()


def test_the_loop_fits_on_four_screens_and_its_parts_have_few_methods(modules):
    (loop,) = [module for module in modules if module.path == "loop/loop.py"]
    assert len(loop.text.splitlines()) <= 200
    crowded = [kind.place for module in modules for kind in measure.classes(module) if kind.methods > 15]
    # The interface that users write: two of its methods, and of the others what they want.
    assert [place for place in crowded if not place.endswith(" Task")] == []


def test_no_module_imports_one_that_imports_it(modules):
    assert not measure.cycles(modules, typing=True)
