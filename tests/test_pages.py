"""Pages that say which test would find a fault: each test is there."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


def _named() -> list[tuple[str, str, str]]:
    found = []
    for page in ("ranking-tests.md", "mesh-tests.md"):
        pairs = set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (DOCS / page).read_text()))
        found += [(page, file, test) for file, test in sorted(pairs)]
    return found


@pytest.mark.parametrize(("page", "file", "test"), [each for each in _named() if "/" in each[1]])
def test_each_test_that_a_page_names_is_there(page, file, test):
    path = TESTS / file.removeprefix("tests/")
    found = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    assert not test or test in found, page
