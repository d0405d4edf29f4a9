"""How the benchmark of the examples counts lines and takes the time."""

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "examples"


@pytest.fixture
def module(monkeypatch):
    """A module of the benchmark by its name."""

    def loaded(name):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)  # dataclasses look their module up there
        spec.loader.exec_module(made)
        return made

    return loaded


def test_comments_docstrings_and_blank_lines_are_no_code(module, tmp_path):
    (tmp_path / "task.py").write_text(
        textwrap.dedent(
            '''
            """Two lines
            that say what this is."""

            # a comment
            class Net(nn.Module):
                """A network."""

                def forward(self, x):
                    return x  # as it is

            TEXT = """two
            lines"""
            '''
        )
    )
    (tmp_path / "task.yaml").write_text("# a comment\nname: a\n\nbatch: {size: 1}  # one\n")
    counted = module("lines").count([tmp_path / "task.py", tmp_path / "task.yaml"])
    assert (counted.networks, counted.others) == (3, 4)


def test_a_step_with_an_evaluation_before_it_is_not_timed(module, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", list(sys.path))  # it puts the examples there
    watch = module("original").Stopwatch(ends=[0.0, 1.0, 3.0, 10.0, 11.0, 13.0], pauses={3})
    assert watch.spans() == [(0.0, 1.0), (1.0, 3.0), (10.0, 11.0), (11.0, 13.0)]
    assert watch.spans(every=2) == [(10.0, 13.0)]


def test_only_steps_within_one_slice_count_and_neighbouring_slices_are_compared(module, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    in_turn = module("in_turn")
    slices = [in_turn.Slice("ours", 0, 10), in_turn.Slice("theirs", 10, 20), in_turn.Slice("ours", 20, 30)]
    spans = {"ours": [(1, 2), (3, 5), (9, 21), (22, 25)], "theirs": [(2, 3), (11, 12), (14, 17), (19, 21)]}
    assert in_turn.step_times(slices, spans) == [(1.5, 2.0)]
