"""What has no items by index is no source, and that is said plainly: it is no attack."""

import textwrap

import pytest

from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.exits import Exit, Failure

CODE = """
    import torch

    class Lines(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([1, 2])

    class Stream:
        def __iter__(self):
            return iter([1, 2])

    class Endless:
        def __getitem__(self, index):
            return index

    class Neither:
        pass

    def rows():
        yield 1

    there = [1, 2]
"""


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "streams_of_this_test.py").write_text(textwrap.dedent(CODE))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lines", "is no source, but an IterableDataset, which has no items by index"),
        ("Stream", "is no source, but a class that can only be iterated over"),
        ("Endless", "is no source, but a class without __len__"),
        ("Neither", "is no source, but a class without __len__ and __getitem__"),
        ("rows", "is no source, but a generator, which has no length"),
        ("there", "is no source, but an object (list), not a class"),
    ],
)
def test_a_stream_as_a_source_is_a_bad_recipe_with_what_to_do(folder, name, words):
    with pytest.raises(Failure) as caught:
        build_custom(Custom(section="source", kind=f"streams_of_this_test:{name}", folder=str(folder)))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert words in caught.value.outcome.cause
    assert "needs __len__ and __getitem__" in caught.value.outcome.hint


@pytest.mark.parametrize("kind", ["os:system", "builtins:eval", "subprocess:Popen", "builtins:object"])
def test_what_is_no_class_of_data_is_still_refused(kind):
    with pytest.raises(Failure) as caught:
        build_custom(Custom(section="source", kind=kind))
    assert caught.value.outcome.code == Exit.SECURITY
