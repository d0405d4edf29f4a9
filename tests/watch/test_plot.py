import importlib.util

import pytest

from drivetrain.ledger.run_summary import summarize
from drivetrain.spec.exits import Failure
from drivetrain.watch import plot
from drivetrain.watch.chart import columns
from drivetrain.watch.plot import draw, panels
from records import attempt, evaluation, parsed, step


def run(count=6, loss="loss"):
    losses = [{loss: 5.0 / n if n != 3 else "nan"} for n in range(1, count + 1)]
    return summarize(
        parsed([attempt(), *(step(n, losses=told) for n, told in enumerate(losses, start=1)), evaluation(count)])
    )


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_curves_are_the_same_bytes(tmp_path, suffix):
    written = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for path in written:
        draw(path, "a run", panels({"run": run()}))
    first, second = (path.read_bytes() for path in written)
    assert first == second
    assert first.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert b"Date" not in first


def test_one_runs_losses_share_a_panel_and_several_runs_share_one_for_each():
    alone = panels({"a": run()})
    assert [(panel.title, list(panel.lines)) for panel in alone] == [
        ("training loss", ["loss"]),
        ("bits", ["dogs"]),
        ("learning rate", ["model"]),
    ]
    both = panels({"a": run(), "b": run(loss="other")}, "tokens")
    assert [(panel.title, list(panel.lines)) for panel in both] == [
        ("training loss, loss", ["a"]),
        ("bits, dogs", ["a", "b"]),
        ("learning rate, model", ["a", "b"]),
        ("training loss, other", ["b"]),
    ]
    assert both[0].lines["a"][-1] == (4800, 5.0 / 6)
    assert both[1].lines["a"] == [(4800, 1.5)]


def test_any_name_can_be_drawn_and_so_can_a_run_without_steps(tmp_path):
    draw(tmp_path / "x.svg", "$\\frac{", panels({"_hidden $x": run(loss="$_\\bad{"), "\x1b[31m": run()}))
    draw(tmp_path / "y.svg", "new", panels({"new": summarize(parsed([attempt()]))}))


def test_many_points_are_drawn_as_medians_over_their_spread(tmp_path):
    found = columns([(n, float(n % 10)) for n in range(10_000)], 100)
    assert len(found) == 100
    assert all(low <= middle <= high for _, low, middle, high in found)
    assert [place for place, *_ in found] == sorted(place for place, *_ in found)
    draw(tmp_path / "x.svg", "long", panels({"run": run(3 * plot._COLUMNS)}))
    assert (tmp_path / "x.svg").stat().st_size < 500_000


def test_a_picture_that_cannot_be_drawn_is_told_before_anything_is_read(tmp_path, monkeypatch):
    with pytest.raises(Failure, match="draws"):
        draw(tmp_path / "x.pdf", "a run", [])
    with pytest.raises(Failure, match="cannot be written"):
        draw(tmp_path / "nowhere" / "x.png", "a run", [])
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(Failure) as caught:
        draw(tmp_path / "x.png", "a run", [])
    assert (caught.value.outcome.code, caught.value.outcome.hint) == (66, "pip install 'drivetrain[plot]'")
    assert importlib.util.find_spec("matplotlib")
