"""The figures of `make measure`, on a small tree whose figures are known."""

import textwrap

import pytest

from measure import structure

SOURCES = {
    "__init__.py": "",
    "long.py": """
        # a comment
        from typing import TYPE_CHECKING

        from drivetrain import low

        if TYPE_CHECKING:
            from drivetrain.typed import Typed


        class Busy:
            def __init__(self, a, b, c, d, e, f):
                self.all = [item for item in (a, b, c, d, e, f) if item]

            def choose(self, flag):  # not a line of its own
                if flag and self.all:
                    return 1 if flag else 2
                return low
        """,
    "low.py": """
        def wide(a, b, c, d, e, f, *, g):
            assert a or b
        """,
    "typed.py": """
        from drivetrain.long import Busy


        class Typed(Busy):
            pass
        """,
    "round.py": """
        def late():
            import drivetrain.trip
        """,
    "trip.py": "from drivetrain import round",
    "cli/train.py": """
        import typer


        def train(a: str = typer.Option(), b=0, c=0, d=0, e=0, f=0, g=0, h=0):
            match a:
                case "x" | "y":
                    return [1 for _ in a]
                case _:
                    return 2
        """,
}


@pytest.fixture
def figures(tmp_path):
    for name, text in SOURCES.items():
        file = tmp_path / "src" / "drivetrain" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    return structure(tmp_path)


def test_the_largest_are_named(figures):
    assert figures["longest file"] == "17 lines: long.py"
    assert figures["longest class"] == "8 lines, 2 methods: long.py:10 Busy"
    assert figures["longest function, lines"] == "6: cli/train.py:4 train"


def test_parameters_count_without_self_and_a_commands_are_the_command_lines(figures):
    assert figures["functions above 6 parameters"] == 2
    assert figures["functions above 6 parameters, commands apart"] == ["7: low.py:1 wide"]


def test_complexity_counts_every_decision(figures):
    assert figures["highest complexity"] == "4: long.py:14 choose"


def test_cycles_through_functions_count_and_those_for_types_are_told_apart(figures):
    running = "drivetrain.round drivetrain.trip"
    assert figures["import cycles at run time"] == [running]
    assert figures["import cycles with imports for types"] == ["drivetrain.long drivetrain.typed", running]


def test_density_is_per_thousand_lines(figures):
    lines = figures["lines of source"]
    assert lines == 17 + 2 + 5 + 2 + 1 + 9
    assert figures["comprehensions per 1,000 lines"] == round(2000 / lines, 1)
    assert figures["conditional expressions per 1,000 lines"] == round(1000 / lines, 1)
    assert figures["comment lines per 1,000 lines"] == round(1000 / lines, 1)
