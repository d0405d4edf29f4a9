import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.text import printable
from drivetrain.watch.console import ConsoleSink, amount, closing, duration, tolerant
from records import attempt, commit, ended, evaluation, parsed, rollback, statistics, step, training


def shown(*records, terminal=False, width=80, started=0.0):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
    sink = ConsoleSink(console, started)
    for record in parsed(records):
        sink.record(record)
    sink.close()
    return console.file.getvalue()


def show(text, name="sample"):
    return {"kind": "show", "time": 20.0, "step": 1, "text": {name: text}, "files": {name: "gallery/x.txt"}}


def test_plain_lines_say_step_loss_rate_and_time_left():
    text = shown(attempt(), step(1), step(4))
    assert "12.3k parameters, 2 processes, 4 steps" in text
    assert "step 1/4  loss 2.500  800 tokens/s  0:03 left  lr 1.0e-03" in text
    assert "step 4/4" in text
    assert "\x1b" not in text


def test_plain_lines_come_every_five_seconds_then_every_minute_and_at_the_end():
    told = shown(attempt(steps=8000), *(step(n) for n in range(1, 8001))).splitlines()[1:]
    at = [int(line.split("/")[0].removeprefix("step")) for line in told]
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert pauses[:3] == [5, 5, 5]
    assert pauses[-2] == 60
    assert at[-1] == 8000


def test_a_set_without_scores_is_told_by_its_samples():
    text = shown(attempt(), evaluation(4) | {"metrics": {"dogs": {}}})
    assert "evaluation at step 4  dogs  9 samples, of which no metric has gathered" in text


def test_scores_of_training_samples_are_told_with_their_running_means():
    text = shown(attempt(), training(4), width=120)
    assert "training at step 4  auc 0.7000 (mean 0.6500)  loss nan" in text


def test_statistics_are_told_by_network():
    text = shown(attempt(), statistics(4), width=120)
    assert "statistics of step 4  model  weights 2.500  change 0.1000" in text


def test_a_terminal_gets_one_live_line_with_a_bar():
    text = shown(attempt(), *(step(n) for n in range(1, 5)), terminal=True)
    assert "━" in text
    assert "step 4/4" in text


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_the_live_line_fits_and_loses_no_word(width):
    losses = {"losses": {"generator.adversarial": 1.0, "discriminator.real": 2.0}}
    text = shown(attempt(), step(4) | losses, terminal=True, width=width)
    words = text.replace("\n", " ")
    for word in ("generator.adversarial", "1.000", "discriminator.real", "2.000", "tokens/s", "0:00", "1.0e-03"):
        assert word in words
    assert ("━" in text) == (width >= 200)


def test_the_rate_is_that_of_the_last_seconds():
    slow = [step(n, seconds=9.0, wait=1.0) for n in range(1, 3)]
    fast = [step(n, at=40.0, seconds=0.9, wait=0.1) for n in range(3, 21)]
    text = shown(attempt(steps=20), *slow, *fast)
    assert "step  1/20  loss 2.500  80 tokens/s  3:10 left" in text
    assert "step 20/20  loss 2.500  800 tokens/s" in text


KNOWN = {"flops": {"per_sample": 5e9, "peak": 1e11}}


def test_the_mfu_is_told_where_the_devices_peak_is_known():
    text = shown(attempt() | KNOWN, step(1), step(4))
    assert "step 1/4  loss 2.500  800 tokens/s  20.0% MFU  0:03 left" in text
    assert "MFU" not in shown(attempt() | {"flops": {"per_sample": 5e9, "peak": None}}, step(4))


def test_the_end_says_what_the_attempt_trained_and_how_fast():
    slow = step(2, seconds=2.9)
    text = shown(attempt() | KNOWN, step(1), slow, step(3), step(4, skipped={"model": "spike"}), ended(75, "SIGTERM"))
    assert "trained 2.40k tokens: 400 tokens/s  10.0% MFU" in text
    assert "trained" not in shown(attempt(), ended(75, "SIGTERM"))


def test_another_attempts_time_is_not_in_the_rate():
    text = shown(attempt(), step(1, seconds=99.0), attempt(2, 1, at=30.0), step(2, at=30.0), ended(0, "all made"))
    assert "step 2/4  loss 2.500  800 tokens/s" in text
    assert "trained 800 tokens: 800 tokens/s" in text


def test_samples_are_counted_where_there_are_no_tokens():
    assert "  8 samples/s" in shown(attempt(), step(4) | {"counts": {"samples": 8}})


def test_evaluations_commits_and_notes_are_told():
    made = commit(2, at=21.0, seconds=0.021) | {"bytes": 7_642_932}
    text = shown(attempt(), evaluation(2), made, {"kind": "note", "time": 21.0, "text": "passed over x"})
    assert "evaluation at step 2  dogs  bits 1.500" in text
    assert "commit step-00000002  7.6 MB, training waited 0.02 s" in text
    assert "note: passed over x" in text


def test_a_loss_that_is_not_finite_is_told_as_it_is():
    assert "loss nan" in shown(attempt(), step(4, loss="nan"))


def test_the_end_is_told_with_its_time_only_where_all_is_done():
    assert "done in 1:01: all made" in shown(attempt(), step(4), ended(0, "all made", at=70.0))
    assert "SIGTERM" not in shown(attempt(), step(4), ended(75, "SIGTERM"))


def test_a_resumed_run_shows_its_own_attempt_and_says_what_is_made_again():
    earlier = [attempt(), step(1, 0), step(2, 0), step(3, 0)]
    text = shown(*earlier, attempt(2, 1, at=30.0), step(2, at=30.0), started=29.0)
    assert "goes on after step 1; 2 steps after it are made again" in text
    assert text.count("parameters") == 1
    assert "step 3/4" not in text
    again = shown(*earlier, attempt(2, 1, at=30.0), attempt(3, 1, at=40.0), started=39.0)
    assert "goes on after step 1\n" in again


def test_a_second_attempt_in_one_session_goes_on_with_the_same_live_line():
    text = shown(attempt(), step(1), attempt(2, 1, at=30.0), step(2), step(4), terminal=True)
    assert "step 4/4" in text
    hide, again = "\x1b[?25l", "\x1b[?25h"  # the cursor
    assert (text.count(hide), text.count(again)) == (1, 1)


def test_a_long_text_is_cut_and_its_file_named():
    text = shown(attempt(), show("\n".join(map(str, range(100)))))
    assert "23" in text
    assert "99" not in text
    assert "... 76 more lines in gallery/x.txt" in text


EVIL = "a\x1b]0;owned\x07\r\n\x9b2J\u202eb[red]c[/nothing]"


def test_x13_control_characters_of_users_are_made_visible():
    assert printable(EVIL) == "a\\x1b]0;owned\\x07\\r\\n\\x9b2J\\u202eb[red]c[/nothing]"
    text = shown(
        attempt(),
        step(4) | {"losses": {EVIL: 1.0}},
        evaluation(4, name=EVIL, metric=EVIL),
        show(EVIL, EVIL),
        {"kind": "note", "time": 1.0, "text": EVIL},
        ended(0, EVIL),
    )
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(text)
    assert text.count("[red]c[/nothing]") == 7


@given(st.text())
def test_x13_what_is_printable_is_one_line_of_visible_characters(text):
    assert printable(text).isprintable()


@given(st.floats(1, 9.99e14))
def test_amounts_have_three_digits(value):
    text = amount(value)
    number = float(text.rstrip("kMBT")) * {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1)
    assert number == pytest.approx(value, rel=0.006)
    assert "e" not in text
    assert len(text) <= 5


def test_durations():
    assert [duration(seconds) for seconds in (-1, 0, 59.6, 61, 3661)] == ["0:00", "0:00", "1:00", "1:01", "1:01:01"]


def test_a_poor_encoding_is_no_error():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    tolerant(Console(file=file, width=80)).print("━ é")
    file.flush()
    assert file.buffer.getvalue() == b"? ?\n"


def closed(run, code):
    console = Console(file=io.StringIO(), width=100)
    closing(console, run, Outcome(code=code, cause="", where={}), "drivetrain train x a='b c'")
    return console.file.getvalue()


def test_the_summary_says_where_everything_is_and_what_to_run_next(tmp_path):
    run = tmp_path / "a run"
    for name in ("checkpoints/step-00000002", "checkpoints/step-00000004", "gallery/step-00000004", "tensorboard"):
        (run / name).mkdir(parents=True)
    (run / "ledger.jsonl").touch()
    done = closed(run, Exit.DONE)
    for words in ("2 commits, the newest step-00000004", "gallery/step-00000004/", f"drivetrain report '{run}'"):
        assert words in done
    for words in (f"drivetrain export '{run}' --to exported", f"tensorboard --logdir '{run}'/tensorboard"):
        assert words in done
    assert "go on" not in done
    stopped = closed(run, Exit.STOPPED)
    assert "drivetrain train x a='b c'" in stopped
    assert "export" not in stopped


def test_the_summary_of_a_run_that_made_nothing_only_says_where_it_is(tmp_path):
    assert closed(tmp_path, Exit.DIVERGED).split() == ["run", str(tmp_path)]


def test_a_rollback_is_told_and_is_no_lost_step_of_the_next_attempt():
    text = shown(attempt(), step(1), step(2), step(3), rollback(3, 1), attempt(2, 1, at=50.0))
    assert "step 3 is undone, back to step 1: not finite while model moved" in text
    assert "2 samples are left out from there on" in text
    assert text.rstrip().endswith("goes on after step 1")
