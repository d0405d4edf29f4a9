"""What counts as what code does, and that every Python says the same of it (`tests/test_pythons.py` runs this too)."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.code.canonical import Import, bytes_digest, read_syntax, tree_digest

SOURCE = '''
"""A module."""
from __future__ import annotations

import os as system, json
from .near import one, two
from ..far import three
from torch import nn

LIMIT, RATE, BIG = 1_000, 1e-3, 10 ** 40  # a comment
NAMES: list[str] = ["a", 'b', "c" "d", "\\u00e9\\U0001fae8", b"\\x00"]
NOTHING = (None, True, False, ..., 1j, -0.0, 0x10)


@nn.decorator(value=LIMIT)
class Net(nn.Module, metaclass=type):
    """Has a docstring."""

    width: int = 3
    "and a text after a field"

    def __init__(self, *sizes: int, depth: int = 2, **rest) -> None:
        super().__init__()
        self.sizes = {**rest, "sizes": sizes}

    async def forward(self, x, /, y=None, *, z=0):
        async with self.lock as held, self.other:
            x = await held(x)
        return f"a{x!r:>{y}.{z}}b" f"c{y=}" "d{{}}" + f"{x:}"


def steps(count):
    """Only this."""
    while count:
        try:
            yield from (value for row in range(count) if row for value in [row, *NAMES])
        except* (ValueError, OSError) as error:
            raise error from None
        else:
            pass
        finally:
            count -= 1
    for a, *b in {}:
        del a
    assert count, "no"
    global LIMIT
    lambda q: (yield)
    match count:
        case {"a": 1, **others} if others:
            return others
        case [Net(width=3) as net, *_] | None:
            return net
        case _:
            return (x := count)[1:2, ::3] @ LIMIT if 1 < count <= 3 else not count
'''


def digest(source: str) -> str:
    return read_syntax(textwrap.dedent(source).encode()).digest


def test_the_digest_is_the_same_on_every_python_and_in_every_version():
    source = SOURCE.replace("except*", "except")  # the other came with Python 3.11
    assert digest(source) == "89cebb5be03a72c8"


def test_comments_docstrings_formatting_and_spelling_do_not_count():
    plain = """
    def loss(a, b=1000):
        return [a + b, "text", 0.001]
    """
    other = '''
    # a comment
    def loss(
        a,
        b = 1_000,   # another
    ):
        """What it is."""
        "and more"
        pass
        return [ (a + b), 'te' "xt",
                 1e-3 ]
    '''
    assert digest(plain) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = None", "x = ''"),
        ("x = y", "x = 'y'"),
        ("x = f(a)", "x = f(*a)"),
        ("x = f(a, b)", "x = f(b, a)"),
        ("{**a}", "{'': a}"),
        ("def f(*, a, b=1): x", "def f(*, a=1, b): x"),
        ("x = nn.ReLU()", "x = nn.Tanh()"),
        ("if a:\n  b\nelse:\n  c", "if a:\n  c\nelse:\n  b"),
        ("for a in b:\n  c\nd", "for a in b:\n  c\n  d"),
        ("import a", "import a as b"),
        ("from a import b", "from .a import b"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x}'", "f'{x:>3}'"),
        ("f'a{x}b'", "f'a{x}' 'c'"),
        ("x = [[], 1]", "x = [1, []]"),
        ("async def f(): x", "def f(): x"),
        ("x = a < b", "x = a <= b"),
        ("def f(a): b", "def g(a): b"),
        ("def f(a): a", "def f(b): b"),
        ("def f(): x\ndef g(): y", "def g(): y\ndef f(): x"),
        ("@a\ndef f(): x", "def f(): x"),
        ("def f(a: int): x", "def f(a: str): x"),
        ("x = -0.0", "x = 0.0"),
        ("x: int", "x"),
    ],
)
def test_what_code_does_counts(one, other):
    assert digest(one) != digest(other)


def test_what_f_strings_are_cut_into_does_not_count():
    whole = ast.parse("f'ab{x}cd'")
    cut = ast.parse("f'ab{x}cd'")
    joined = cut.body[0].value
    joined.values[:1] = [ast.Constant("a"), ast.Constant("b")]
    assert tree_digest(whole) == tree_digest(cut)


def test_a_long_sum_is_no_recursion_too_deep():
    assert digest("x = " + " + ".join(["1"] * 2500)) != digest("x = " + " + ".join(["1"] * 2501))


def test_source_that_no_parser_takes_counts_by_its_bytes():
    assert digest("def (") == bytes_digest(b"def (")
    assert digest("x = " + "-" * 100_000 + "1") == bytes_digest(b"x = " + b"-" * 100_000 + b"1"), "too deep"
    assert digest("def (") != digest("def ( ")
    assert read_syntax(b"x = 1\0").digest != read_syntax(b"x = 1").digest


def test_encodings_and_line_ends_do_not_count():
    text = "x = 'é'\ny = '''a\nb'''\n"
    assert digest(text) == read_syntax(b"# coding: latin-1\n" + text.encode("latin-1")).digest
    assert digest(text) == read_syntax(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()).digest


def test_imports_are_found_wherever_they_stand():
    found = read_syntax(
        textwrap.dedent(
            """
            import a.b, c as d
            from e import f, g as h
            from . import i
            from ..j.k import *
            def late():
                import l
                importlib.import_module("m.n"), __import__("o"), import_module(name), import_module(".p", q)
            if TYPE_CHECKING:
                from r import s
            """
        ).encode()
    ).imports
    assert set(found) == {
        Import("a.b"),
        Import("c"),
        Import("e", ("f", "g")),
        Import("", ("i",), 1),
        Import("j.k", ("*",), 2),
        Import("l"),
        Import("m.n"),
        Import("o"),
        Import("r", ("s",)),
    }


def test_declared_files_are_read_from_literals():
    source = b"""
class One(Task):
    code_files = ("model.json", "{tokenizer}")
class Two(Task):
    code_files: ClassVar = ["a"]
class Three(Task):
    code_files = tuple(made())
    other = ("b",)
class Four(Task):
    code_files: ClassVar
"""
    one, two, three = read_syntax(source).declared
    assert (one, two) == (("One", ("model.json", "{tokenizer}")), ("Two", ("a",)))
    assert three == ("Three", None), "no literal: the scan says so"


@given(st.text(alphabet="abxyz=+()[]:, \n'\"#0159.{}", max_size=60))
def test_what_is_parsed_again_from_its_own_tree_counts_the_same(text):
    """Writing a tree as source again drops formatting, comments and spelling."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    assert tree_digest(ast.parse(ast.unparse(tree))) == tree_digest(tree)
