import math

from drivetrain.watch.chart import chart, spark


def test_a_curve_goes_from_its_highest_to_its_lowest_value():
    lines = chart([(n, 39.0 - n) for n in range(40)], width=20, height=5).plain.splitlines()
    for row, label in enumerate(("39", "  ", "  ", "  ", " 0")):
        assert lines[row] == f"{label} │{'⠀' * 4 * row}⠉⠒⠤⣀{'⠀' * (16 - 4 * row)}"
    assert lines[6] == f"    step 0{'step 39':>14}"


def test_a_jump_of_a_curve_is_one_line():
    top, bottom = chart([(1, 1.0), (2, 0.0)], width=1, height=2).plain.splitlines()[:2]
    assert (top, bottom) == ("1 │⢱", "0 │⢸")


def test_a_curve_tells_what_it_cannot_show():
    assert "no finite value" in chart([(1, math.nan)]).plain
    assert "not finite, so not shown: 1 of 3" in chart([(1, 2.0), (2, math.inf), (3, 1.0)]).plain
    assert "step 1" in chart([(1, 2.0)]).plain


def test_small_curves():
    assert spark([3.0, 2.0, 1.0]) == "█▅▁"
    assert spark([1.0, 1.0]) == "▁▁"
    assert spark([math.nan, 1.0, 2.0]) == "?▁█"
    assert len(spark([float(n) for n in range(100)])) == 12
