"""Curves in a cell: a real kernel executes the notebook, and what it would be saved with is looked at."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

import drivetrain
from boards import RECIPE, append, made_run
from drivetrain.spec.exits import Failure
from records import attempt, ended, evaluation, rollback, step

pytestmark = pytest.mark.xdist_group("notebook")
FIRST = [
    attempt(steps=400),
    *(step(at, loss=2 + (at == 123) * 7) for at in range(1, 301)),
    rollback(300, 250, at=400.0),
]
LATER = [
    *(step(at, at=500.0, loss=1.0) for at in range(251, 401)),
    evaluation(400, 1.5),
    ended(0, "all made", at=901.0),
]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A notebook whose cells are executed one by one, in a kernel that lasts as long as these tests."""
    home = tmp_path_factory.mktemp("home")
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(home))
        with client.setup_kernel():
            executed(client, "import drivetrain")
            yield client


def executed(client, code):
    """The cell of this code, with what it shows; what is shown later is put in its place."""
    cell = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return cell


def texts(cell):
    """Every text of the one picture that a cell shows."""
    (output,) = cell.outputs
    return list(ElementTree.fromstring(output["data"]["image/svg+xml"]).itertext())


def test_curves_follow_the_run_to_its_end_and_the_last_picture_is_what_is_saved(kernel, tmp_path):
    run = made_run(tmp_path / "live", FIRST, RECIPE | {"name": "live"})
    shown = executed(kernel, f"shown = drivetrain.board({str(run)!r})\nshown")
    assert "live: cut off, step 250 of 400" in texts(shown)
    assert "dogs/bits" not in texts(shown)
    append(run, LATER)
    waited = executed(kernel, "print(shown.wait())")
    assert [output["text"] for output in waited.outputs] == ["True\n"]
    told = texts(shown)
    assert "live: done, step 400 of 400, all made" in told
    assert {"train/loss", "dogs/bits", "learning_rate/model"} <= set(told)
    assert [kind for kind in shown.outputs[0]["data"] if "javascript" in kind or "html" in kind] == []
    saved = nbformat.reads(nbformat.writes(kernel.nb), as_version=4)
    assert texts(saved.cells[1]) == told


def test_what_asks_for_it_is_one_picture_of_the_curves_and_the_axis_it_names(kernel, tmp_path):
    runs = [made_run(tmp_path / name, FIRST, RECIPE | {"name": name}) for name in ("one", "two")]
    called = f"drivetrain.board({str(runs[0])!r}, {str(runs[1])!r}, curves=['gradient_norm/model'], by='tokens')"
    shown = executed(kernel, f"both = {called}")
    executed(kernel, "both.stop()")
    told = texts(shown)
    assert [text for text in told if "/" in text] == ["gradient_norm/model"]
    assert [text.partition(":")[0] for text in told if "cut off" in text and ";" not in text] == ["one", "two"]
    assert "tokens 240000" in told


def test_one_curve_may_be_named_and_above_it_stands_the_newest_value_that_counts(kernel, tmp_path):
    steps = [step(at, loss=float(at)) for at in range(1, 1001)]
    run = made_run(tmp_path / "one", [attempt(steps=1000), *steps, rollback(1000, 949, at=2000.0)])
    shown = executed(kernel, f"shown = drivetrain.board({str(run)!r}, curves='train/loss')\nshown.stop()")
    assert texts(shown)[2:4] == ["train/loss", " 949"]
    assert "no values yet" not in texts(shown)


def test_names_that_look_like_markup_are_text(kernel, tmp_path):
    folder = tmp_path / "<script>alert(1)<"
    name = '"><img src=x onerror=alert(1)>'
    run = made_run(folder, [attempt(), step(1), evaluation(1, name=name), ended(0, "</text><script>")])
    shown = executed(kernel, f"shown = drivetrain.board({str(run)!r})\nshown.wait()")
    picture = shown.outputs[0]["data"]["image/svg+xml"]
    assert "<script" not in picture
    assert "<img" not in picture
    assert f"{name}/bits" in "".join(ElementTree.fromstring(picture).itertext())


def test_a_run_that_is_removed_leaves_what_was_shown(kernel, tmp_path):
    run = made_run(tmp_path / "gone", FIRST)
    shown = executed(kernel, f"shown = drivetrain.board({str(run)!r})")
    before = texts(shown)
    executed(kernel, f"import shutil\nshutil.rmtree({str(run)!r})")
    waited = executed(kernel, "print(shown.wait())")
    assert [output["text"] for output in waited.outputs] == ["True\n"]
    assert set(before) - set(texts(shown)) == {"gone: cut off, step 250 of 400"}
    assert "gone: gone, step 250 of 400, the run directory was removed" in texts(shown)


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ("drivetrain.board({run!r}, by='hours')", "by is one of step, samples, tokens, seconds, time"),
        ("drivetrain.board({run!r}, {run!r})", "runs are given once each"),
        ("drivetrain.board()", "runs are given once each"),
        ("drivetrain.board({run!r} + '/none')", "is no run directory"),
    ],
)
def test_what_cannot_be_shown_is_said(kernel, tmp_path, called, said):
    run = str(made_run(tmp_path / "one", FIRST))
    cell = executed(kernel, f"try:\n    {called.format(run=run)}\nexcept Exception as error:\n    print(error)")
    assert said in cell.outputs[0]["text"]


def test_outside_of_a_notebook_it_is_64_and_says_what_is_for_there(tmp_path):
    with pytest.raises(Failure, match="cell of a notebook") as refused:
        drivetrain.board(made_run(tmp_path / "one", FIRST))
    assert refused.value.outcome.code == 64
    assert "drivetrain board RUN" in refused.value.outcome.hint


@pytest.mark.cold
@pytest.mark.parametrize(
    "code",
    [
        "import drivetrain; f = drivetrain.board; import drivetrain.board.index; g = drivetrain.board",
        "import drivetrain.board.index, drivetrain; f = g = drivetrain.board",
        "from drivetrain import board as f; from drivetrain.board import notebook; g = notebook.board",
    ],
)
def test_it_can_be_called_whatever_was_imported_before_and_torch_is_not(code):
    told = f"{code}; import sys; print(callable(f), callable(g), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
