"""What is a stream, what it can do, and what is neither a source nor a stream: that is said plainly, and no attack."""

import textwrap

import pytest

from drivetrain.spec.custom import Custom, build_custom, check_custom, found_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.streams import ability, is_stream, promise, takes_lanes

CODE = """
    from collections.abc import Iterable, Iterator

    class Stream:
        def __iter__(self):
            return iter([1, 2])

    class Seeking(Stream):
        def seek(self, number): ...

    class Telling(Stream):
        def state_dict(self): ...
        def load_state_dict(self, state): ...

    class Endless:
        def __getitem__(self, index):
            return index

    class Neither:
        pass

    class Both(Stream):
        def __getitem__(self, index): ...
        def __len__(self): ...

    def rows():
        yield 1

    def begun(start: int, path: str = "x"):
        yield start

    def parts(lane, lanes, start=0):
        yield start

    def made(path: str) -> Iterable[int]:
        return [1]

    def plain(path: str):
        return [1]

    there = [1, 2]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "streams_of_this_test.py").write_text(textwrap.dedent(CODE))
    return tmp_path


def custom(folder, name, **settings):
    return Custom(section="source", kind=f"streams_of_this_test:{name}", folder=str(folder), settings=settings)


@pytest.mark.parametrize(
    ("name", "how", "lanes"),
    [
        ("Stream", "count", False),
        ("Seeking", "seek", False),
        ("Telling", "state", False),
        ("rows", "count", False),
        ("begun", "seek", False),
        ("parts", "seek", True),
        ("made", "count", False),
    ],
)
def test_what_a_stream_can_do_shows_in_what_it_has(folder, name, how, lanes):
    found = found_custom(custom(folder, name, **({"path": "x"} if name == "made" else {})))
    assert is_stream(found)
    assert (ability(found), takes_lanes(found)) == (how, lanes)
    assert "a stream" in promise(found)


def test_what_looks_up_by_number_is_no_stream(folder):
    assert not is_stream(found_custom(custom(folder, "Both")))


def test_torchs_iterable_dataset_is_a_stream():
    torch = pytest.importorskip("torch")
    assert is_stream(type("Lines", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter([])}))


def test_what_the_run_gives_a_function_no_recipe_does(folder):
    check_custom(custom(folder, "begun", path="y"))
    with pytest.raises(Failure, match="'start' is nothing that a recipe gives"):
        check_custom(custom(folder, "begun", start=3))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Endless", "is no source, but a class without __len__"),
        ("Neither", "is no source, but a class without __len__ and __getitem__"),
        ("there", "is no source, but an object (list), not a class"),
    ],
)
def test_what_is_neither_is_a_bad_recipe_with_what_to_do(folder, name, words):
    with pytest.raises(Failure) as caught:
        build_custom(custom(folder, name))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert words in caught.value.outcome.cause
    assert "needs __len__ and __getitem__" in caught.value.outcome.hint


def test_a_function_that_does_not_say_what_it_returns_is_refused(folder):
    with pytest.raises(Failure) as caught:
        build_custom(custom(folder, "plain", path="x"))
    assert caught.value.outcome.code == Exit.SECURITY


@pytest.mark.parametrize("kind", ["os:system", "builtins:eval", "subprocess:Popen", "builtins:object"])
def test_what_is_no_class_of_data_is_still_refused(kind):
    with pytest.raises(Failure) as caught:
        build_custom(Custom(section="source", kind=kind))
    assert caught.value.outcome.code == Exit.SECURITY
