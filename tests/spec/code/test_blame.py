"""Whose code an exception comes from: frames are judged by where their files lie."""

import json
import subprocess
import sys

import pytest

from drivetrain.spec.amount import Amount
from drivetrain.spec.code.blame import folded, own_caller, own_place, words


def caught(act):
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_users_innermost_line_though_a_library_has_raised():
    place = own_place(caught(lambda: json.loads("{")))
    assert place is not None
    assert (place.file, place.text) == (__file__, 'place = own_place(caught(lambda: json.loads("{")))')


def test_what_this_package_raises_when_it_is_called_is_not_the_users():
    error = caught(lambda: Amount.samples_at(None, None))
    assert own_place(error) is None
    assert own_caller(error).file == __file__


def test_frames_of_others_are_counted_and_the_users_are_whole():
    def broken(text):
        json.loads(text)

    shown = folded(caught(lambda: broken("{")))
    assert "    json.loads(text)\n" in shown
    assert "frames of Python\n" in shown
    assert "decoder.py" not in shown
    assert shown.endswith("(char 1)")


def test_an_exception_raised_from_another_shows_both_and_no_end_is_needed():
    def broken():
        try:
            json.loads("{")
        except ValueError as error:
            raise KeyError("b") from error

    shown = folded(caught(broken))
    assert shown.index("JSONDecodeError") < shown.index("direct cause") < shown.index("KeyError: 'b'")


def test_a_circle_of_causes_ends():
    error = caught(lambda: json.loads("{"))
    error.__traceback__, error.__cause__ = None, error
    assert own_place(error) is None


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb"])
def test_the_words_of_an_exception_are_one_line_that_does_nothing_to_a_terminal(text):
    assert "\n" not in words(ValueError(text))
    assert "\x1b" not in words(ValueError(text))


def test_a_recipes_own_folder_is_the_users_wherever_it_lies(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "lying_there.py").write_text("def act():\n    return 1 / 0\n")
    code = (
        "import lying_there\nfrom drivetrain.spec.code.blame import own_place\n"
        "try:\n    lying_there.act()\nexcept ZeroDivisionError as error:\n"
        f"    print(own_place(error), own_place(error, {str(folder)!r}), sep='|')"
    )
    path = [str(folder), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:] = {path!r}\n{code}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"None|{folder / 'lying_there.py'}:2: return 1 / 0\n"
