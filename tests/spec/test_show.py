"""A recipe that is shown is read as the same, whatever its texts look like."""

import pytest

from drivetrain.spec.parse import parse
from drivetrain.spec.show import as_yaml
from drivetrain.spec.tree import Origin, to_data

WORDS = [
    *("1e3", "0x1F", "010", "1:30", "on", "null", "~", "2020-01-01", ".5", "5.", "1_000", "<<", "=", "-", ""),
    *("a: b", "# x", "'", '"', "\\", "é", "😀", "a\nb", "a\n", "\x1b[2J", "\u2028", "y: " * 60, "FILL_IN"),
]


@pytest.mark.parametrize("word", WORDS)
def test_a_text_is_read_as_itself_wherever_it_stands(word):
    tree = {"name": word, "flow": [word], "block": [{"x": [word, {}]}], word[:60] or "k": {"y": word}}
    shown = as_yaml(tree, {"name": "one\nline", "flow[0]": "x"})
    mistakes = []
    assert to_data(parse(shown, Origin("file", "x", 1), mistakes)) == tree
    assert mistakes == []
    assert "\x1b" not in shown
    assert "# one\\nline" in shown
