"""The code of classes that stand in no file: what they refer to now is what counts."""

import linecache
import math

import pytest

from drivetrain.spec.code.canonical import read_syntax
from drivetrain.spec.code.notebook import source_in_memory


class Notebook:
    """Cells, run as a notebook does: each has a file name of its own that nobody can open."""

    def __init__(self):
        self.namespace = {"__name__": "__main__"}
        self.count = 0

    def run(self, cell):
        self.count += 1
        name = f"<cell-{self.count}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), self.namespace)

    def digest(self, name="Fit"):
        return read_syntax(source_in_memory(self.namespace, name).text.encode()).digest

    def source(self, name="Fit"):
        return source_in_memory(self.namespace, name)


TASK = """
class Fit:
    \"\"\"A task.\"\"\"

    def networks(self):
        return build(WIDTH, math.pi)
"""


@pytest.fixture
def notebook():
    made = Notebook()
    made.run(
        "import math\nfrom math import sqrt\nWIDTH = 8\nOTHER = 3\ndef build(width, more):\n    return halve(width)\n"
    )
    made.run("def halve(x):\n    return sqrt(x) / 2\ndef unused():\n    pass\n")
    made.run(TASK)
    return made


def test_what_a_class_refers_to_counts_and_nothing_else(notebook):
    text = notebook.source().text
    for part in ("class Fit", "def build", "def halve", "WIDTH = 8", "import math as math", "from math import sqrt"):
        assert part in text
    assert "unused" not in text
    assert "OTHER" not in text
    assert notebook.source().unread == frozenset()


def test_running_cells_again_or_in_another_order_changes_nothing(notebook):
    before = notebook.digest()
    notebook.run(TASK.replace("A task.", "The task.") + "\n# a comment\n")
    notebook.run("OTHER = 4\ndef halve(x): return sqrt(x) / 2")
    assert notebook.digest() == before


@pytest.mark.parametrize("cell", ["WIDTH = 9", "def halve(x):\n    return sqrt(x) / 3", "from math import exp as sqrt"])
def test_a_change_far_away_counts(notebook, cell):
    before = notebook.digest()
    notebook.run(cell)
    assert notebook.digest() != before


def test_a_class_without_methods_of_its_own_and_objects_of_which_nothing_is_known_are_told(notebook):
    notebook.run(
        "state = object()\nclass Base:\n    pass\nclass Uses(Base):\n    def f(self):\n        return state, math\n"
    )
    assert notebook.source("Uses").unread == {"state", "Base"}


def test_plain_values_count_and_math_is_math(notebook):
    assert math.pi > 3
    notebook.run(
        "TABLE = {'a': [1, 2.5, None], 'b': (True, 'x', b'y')}\nclass Table:\n    def f(self):\n        return TABLE\n"
    )
    before = notebook.digest("Table")
    assert notebook.source("Table").unread == frozenset()
    notebook.run("TABLE['a'].append(3)")
    assert notebook.digest("Table") != before


def test_where_there_is_no_source_the_name_is_told():
    namespace = {"__name__": "__main__"}
    exec("class Fit:\n    def f(self):\n        pass\n", namespace)
    found = source_in_memory(namespace, "Fit")
    assert found.text == ""
    assert found.unread == {"Fit"}
