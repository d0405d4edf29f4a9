"""The page in a real browser, over runs on the disk: what is shown is what the ledger has, and nothing is lost."""

import csv
import http.server
import json
import re
import threading
import wave
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from boards import KEYS, append, made_run, serving
from browsers import launched, needed, violations
from records import attempt, commit, ended, evaluation, of_kind, rollback, step

pytestmark = [needed, pytest.mark.xdist_group("board"), pytest.mark.timeout(180)]

TABS = ("curves", "time", "data", "gallery", "commits", "recipe", "plan", "ledger", "logs")
HOSTILE = [
    "<script>window.bad=1</script>",
    "<img src=x onerror=window.bad=1>",
    '"><svg onload=window.bad=1>',
    "javascript:window.bad=1",
    "{{constructor.constructor('window.bad=1')()}}",
    "</textarea><script>window.bad=1</script>",
    "\u202ereversed\u2066",
    "\x1b[31mred\x07",
    "../../../etc/passwd",
    "%00%2e%2e%2f",
    "' OR 1=1 --",
    "${window.bad=1}",
    "__proto__",
    "constructor",
    "\ud83d\ude00" * 30,
    "a" * 150,
]
HOSTILE += [f"{text} {number}" for number in range(6) for text in HOSTILE[:14]]


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright, "--host-resolver-rules=MAP evil.example 127.0.0.1")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first = [attempt(steps=400), *(step(at, loss=2 + (at == 123) * 7) for at in range(1, 301))]
    scored = [evaluation(100, 2.5), evaluation(200, 1.5), commit(200, at=220.0), rollback(300, 250, at=400.0)]
    later = [*(step(at, at=500.0, loss=1.0) for at in range(251, 401)), ended(0, "all steps are made", at=901.0)]
    made_run(folder / "first", [*first, *scored, *later])
    made_run(
        folder / "second", [attempt(steps=50), *(step(at) for at in range(1, 31)), ended(78, "a mistake", at=60.0)]
    )
    logs = folder / "first" / "logs"
    logs.mkdir()
    (logs / "rank-0.txt").write_text("what rank 0 printed\n" * 5)
    return folder


@pytest.fixture(scope="module")
def board(runs):
    with serving(runs) as asked:
        yield asked


@pytest.fixture
def context(chromium):
    made = chromium.new_context(viewport={"width": 1200, "height": 800})
    yield made
    made.close()


def entered(context, board, address="page=runs", **looks):
    """A page of the board. What its console says is in `said`."""
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.said.append(str(error)))
    if looks:
        page.emulate_media(**looks)
    page.goto(f"{board.url}/?token={KEYS.token}#{address}")
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.fixture
def page(context, board):
    return entered(context, board)


def of(board, name, tab="curves"):
    return f"page=run&run={board.run(name)['id']}&tab={tab}"


def shown(page, records):
    """Wait until curves of so many records are drawn."""
    page.wait_for_selector(f'main[data-shown="{records}"]', timeout=10_000)


def test_the_token_is_gone_from_the_address_and_the_cookie_is_not_for_scripts(page):
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""
    assert page.said == []


def test_the_table_has_every_run_with_state_and_cause(page):
    rows = page.locator("tbody tr")
    assert rows.count() == 2
    text = page.inner_text("tbody")
    assert "failed (78)" in text
    assert "a mistake" in text
    assert "400 of 400" in text


def test_sorting_filtering_and_columns_stand_in_the_address_and_a_link_shows_the_same(page, context, board):
    page.get_by_role("button", name="step", exact=True).click()
    page.wait_for_selector('th[aria-sort="ascending"]')
    assert page.locator("tbody tr").first.get_attribute("data-run") == "second"
    page.fill("input[type=search]", "optimizer.lr > 1e-4 and state = done")
    page.press("input[type=search]", "Enter")
    page.wait_for_selector("caption:text-is('1 of 2 runs')")
    page.get_by_role("button", name="Columns…").click()
    page.get_by_role("checkbox", name="optimizer.lr").check()
    page.get_by_role("button", name="Close").click()
    page.wait_for_selector("td:text-is('0.001')")
    again = context.new_page()
    again.goto(page.url)
    again.wait_for_selector("body[data-ready]")
    assert again.inner_text("table") == page.inner_text("table")


def test_a_wrong_filter_is_said_in_the_page(page):
    page.fill("input[type=search]", "step >")
    page.press("input[type=search]", "Enter")
    page.wait_for_selector("p.bad:has-text('the filter at character 7')")
    page.fill("input[type=search]", "optimzer.lr > 1")
    page.press("input[type=search]", "Enter")
    page.wait_for_selector("p.bad:has-text('no run has')")
    page.wait_for_selector("td:has-text('No run fits')")


def test_runs_without_a_value_come_last_either_way(page):
    for _ in range(2):
        page.get_by_role("button", name="best metric").click()
        page.wait_for_selector("th[aria-sort]:not([aria-sort=none])")
        assert page.locator("tbody tr").last.get_attribute("data-run") == "second"
    assert page.locator('th[aria-sort="descending"]').count() == 1


def test_a_run_is_named_tagged_and_hidden_and_another_window_has_it(page, context, board):
    page.get_by_role("button", name="Name, tags and more of second").click()
    page.get_by_label("Name", exact=True).fill("<b>mine</b>")
    page.get_by_label("Tags, with commas between").fill("baseline, <i>x</i>")
    page.get_by_label("Tags, with commas between").press("Enter")
    page.wait_for_selector("td a:text-is('<b>mine</b>')")
    page.get_by_role("button", name="Name, tags and more of second").click()
    page.get_by_role("button", name="Hide").click()
    page.wait_for_selector("caption:text-is('1 of 2 runs')")
    other = entered(context, board, "page=runs&hidden=1")
    assert "baseline" in other.inner_text("tbody")
    board.send("PATCH", f"/api/runs/{board.run('second')['id']}", {"title": None, "tags": [], "hidden": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(context, board, scheme):
    page = entered(context, board, color_scheme=scheme)
    first, second = (board.run(name)["id"] for name in ("first", "second"))
    found = [("runs", one) for one in violations(page)]
    for address in [*(of(board, "first", tab) for tab in TABS), f"page=compare&runs={first},{second}", "page=jobs"]:
        page.evaluate("document.body.removeAttribute('data-ready')")
        page.goto(f"{board.url}/#{address}")
        page.wait_for_selector("body[data-ready]")
        found += [(address, one) for one in violations(page)]
    page.goto(f"{board.url}/#page=runs")
    page.get_by_role("button", name="Name, tags and more of first").click()
    found += [("dialog", one) for one in violations(page)]
    assert found == []
    assert page.said == []


@pytest.mark.parametrize("width", [360, 3840])
def test_no_page_is_wider_than_the_window(context, board, width):
    page = entered(context, board)
    page.set_viewport_size({"width": width, "height": 800})
    for address in ["page=runs", *(of(board, "first", tab) for tab in TABS)]:
        page.goto(f"{board.url}/#{address}")
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_a_spike_of_one_step_is_in_the_pixels(context, tmp_path):
    made_run(
        tmp_path / "long", [attempt(steps=30_000), *(step(at, loss=1 + 8 * (at == 17_777)) for at in range(1, 30_001))]
    )
    with serving(tmp_path) as board:
        page = entered(context, board, of(board, "long"))
        shown(page, 30_001)
        found = page.evaluate(_INK, "train/loss")
    top = [y for _, y in found if y < 0.3]
    # The line lies at the bottom; what reaches the top third is the spike, at its place.
    assert top
    places = [x for x, y in found if y < 0.3]
    assert max(places) - min(places) < 0.02
    assert abs(sum(places) / len(places) - 17_777 / 30_000) < 0.02


_INK = """(name) => {
  const chart = document.querySelector(`[data-name="${name}"]`), canvas = chart.querySelector('canvas');
  const draw = canvas.getContext('2d'), over = chart.querySelector('.u-over'), ratio = devicePixelRatio, found = [];
  const left = over.offsetLeft * ratio, top = over.offsetTop * ratio;
  const wide = over.offsetWidth * ratio, high = over.offsetHeight * ratio;
  const data = draw.getImageData(left, top, wide, high).data;
  for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
    const at = 4 * (y * wide + x), [r, g, b, a] = data.slice(at, at + 4);
    if (a > 60 && b > r + 60) found.push([x / wide, y / high]);
  }
  return found;
}"""


@pytest.mark.parametrize("values", [(-123_456.7, -123_455.9), (1.23456e-7, 1.23461e-7), (432.6e6, 433.4e6)])
def test_no_label_of_an_axis_is_cut_off(context, tmp_path, values):
    told = [step(at, loss=values[0] + (values[1] - values[0]) * at / 40) for at in range(1, 41)]
    made_run(tmp_path / "one", [attempt(steps=40), *told])
    with serving(tmp_path) as board:
        page = entered(context, board, of(board, "one"))
        shown(page, 41)
        margin, widest = page.evaluate(_LABELS, "train/loss")
    assert widest > 40  # there are labels, and long ones
    assert margin >= 2


# How far from the left edge the labels beside a chart begin, and how wide they are, in pixels of the page.
_LABELS = """(name) => {
  const chart = document.querySelector(`[data-name="${name}"]`), canvas = chart.querySelector('canvas');
  const over = chart.querySelector('.u-over'), ratio = devicePixelRatio;
  // Beside the ticks, which every label has.
  const wide = (over.offsetLeft - 12) * ratio, high = (over.offsetTop + over.offsetHeight) * ratio;
  const data = canvas.getContext('2d').getImageData(0, 0, wide, high).data;
  let first = wide, last = 0;
  for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
    if (data[4 * (y * wide + x) + 3] > 60) { first = Math.min(first, x); last = Math.max(last, x); }
  }
  return [first / ratio, (last - first) / ratio];
}"""


def test_a_value_that_stands_alone_is_seen(context, tmp_path):
    made_run(tmp_path / "one", [attempt(), step(1), step(2), evaluation(2, 2.5)])
    with serving(tmp_path) as board:
        page = entered(context, board, of(board, "one"))
        shown(page, 4)
        assert 0.4 < min(y for x, y in page.evaluate(_INK, "dogs/bits") if y < 0.9) < 0.6


def test_a_clock_that_is_set_back_hides_no_step(context, tmp_path):
    later = [step(at, at=-500.0, loss=7.0) for at in range(21, 41)]
    made_run(tmp_path / "one", [attempt(steps=40), *(step(at) for at in range(1, 21)), *later])
    with serving(tmp_path) as board:
        page = entered(context, board, f"{of(board, 'one')}&by=time")
        shown(page, 41)
        assert page.get_attribute('[data-name="train/loss"] .plot', "data-points") == "40"
        places = [x for x, y in page.evaluate(_INK, "train/loss") if y < 0.9]
        assert min(places) < 0.15
        assert max(places) > 0.85
        page.get_by_label("By").select_option("step")
        page.wait_for_selector('[data-name="train/loss"] .plot[data-points="40"]')
        assert page.said == []


def test_charts_are_drawn_anew_where_light_turns_to_dark(context, board):
    page = entered(context, board, of(board, "first"))
    shown(page, board.run("first")["records"])
    page.evaluate("for (const one of document.querySelectorAll('canvas')) one.dataset.light = '1'")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector('[data-name="train/loss"] canvas:not([data-light])')
    assert page.said == []


def test_the_keyboard_moves_zooms_and_opens_the_record(context, board):
    page = entered(context, board, of(board, "first"))
    shown(page, board.run("first")["records"])
    chart = page.locator('[data-name="train/loss"]')
    chart.locator(".plot").focus()
    page.keyboard.press("End")
    at_end = chart.locator("output").inner_text()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector('[data-name="learning_rate/model"] output:has-text("399 ·")')
    assert chart.locator("output").inner_text() != at_end
    assert chart.locator("output").inner_text().startswith("399")
    page.keyboard.press("+")
    page.wait_for_selector("button:has-text('Show all'):not([disabled])")
    assert "lo=" in page.url
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert json.loads(page.inner_text("dialog pre"))["kind"] == "step"
    page.keyboard.press("Escape")
    chart.locator(".plot").focus()
    page.keyboard.press("0")
    page.wait_for_selector("button:has-text('Show all')[disabled]")


def test_all_charts_show_the_part_that_was_zoomed_to_and_two_clicks_show_all_again(context, board):
    page = entered(context, board, of(board, "first") + "&lo=140.5&hi=150.25")
    shown(page, board.run("first")["records"])
    for name in ("train/loss", "dogs/bits"):  # of which one has no point there
        page.wait_for_selector(f'[data-name="{name}"] .plot[data-span="140.5 150.25"]')
    page.locator('[data-name="train/loss"] .u-over').dblclick(delay=40)
    for name in ("train/loss", "dogs/bits"):
        page.wait_for_selector(f'[data-name="{name}"] .plot[data-span="1 400"]')
    page.wait_for_timeout(500)  # as long as one click would wait for another
    assert page.locator("dialog").count() == 0


def test_a_click_on_a_point_gives_the_record_that_the_ledger_has(context, board):
    page = entered(context, board, of(board, "first"))
    shown(page, board.run("first")["records"])
    over = page.locator('[data-name="train/loss"] .u-over')
    box = over.bounding_box()
    over.click(position={"x": box["width"] / 2, "y": 20})
    record = json.loads(page.inner_text("dialog pre"))
    ledger = board.board.runs.all[board.run("first")["id"]].folder / "ledger.jsonl"
    line = next(line for line in ledger.open() if f'"{record["chain"]}"' in line)
    assert json.loads(line) == record
    assert re.search(r"cats, 8: [0-9, ]+$", page.inner_text("dialog p.text"))
    page.get_by_role("link", name="What they are").click()
    page.wait_for_selector("caption:text-is('Coverage by source')")
    # These runs have no recipe that could be opened: that is said.
    page.wait_for_selector("[role=status]:has-text('recipe')", timeout=60_000)


def test_a_log_is_followed_until_somebody_goes_back_in_it(context, board, runs):
    log = runs / "second" / "logs" / "rank-0.txt"
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(20_000)))
    page = entered(context, board, of(board, "second", "logs"))
    page.get_by_role("button", name="rank-0.txt").click()
    page.wait_for_selector("pre:has-text('line 19999')")
    with log.open("a") as file:
        file.write("and one more\n")
    page.wait_for_selector("pre:has-text('and one more')")
    assert page.locator("pre").evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 1")
    page.get_by_role("button", name="What stands before").click()
    page.wait_for_selector("pre:not(:has-text('and one more'))")
    page.get_by_role("button", name="The end, as it grows").click()
    page.wait_for_selector("pre:has-text('and one more')")


def test_a_reload_and_another_axis_keep_what_is_shown(context, board):
    page = entered(context, board, of(board, "first"))
    for axis in ("samples", "tokens", "seconds", "time", "step"):
        page.get_by_label("By").select_option(axis)
        page.wait_for_timeout(100)
    page.get_by_label("log axis").check()
    was = page.url
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.url == was
    assert page.get_by_label("log axis").is_checked()
    assert page.said == []


def test_a_page_grows_with_the_ledger_and_a_restarted_board_loses_and_doubles_nothing(context, tmp_path):
    run = made_run(tmp_path / "runs" / "live", [attempt(steps=5000)])
    with serving(tmp_path / "runs") as board:
        page = entered(context, board, of(board, "live"))
        for begin in range(1, 10_001, 2500):
            append(run, [step(at) for at in range(begin, begin + 2500)])
            shown(page, begin + 2500)
        port = board.port
    page.wait_for_selector("#state:has-text('does not answer')")
    append(run, [step(at) for at in range(10_001, 10_021)])
    with serving(tmp_path / "runs", port=port) as board:
        shown(page, 10_021)
        page.wait_for_selector("#state:text-is('')", state="attached")
        told = board.get(f"/api/runs/{board.run('live')['id']}")
    assert told["kinds"]["step"] == 10_020
    assert told["step"] == 10_020


def test_a_page_that_the_board_did_not_answer_for_opens_once_it_does(context, board):
    page, lost = entered(context, board), "**/api/runs/*"
    page.route(lost, lambda route: route.abort())
    page.get_by_role("link", name="first", exact=True).click()
    page.wait_for_selector("#alerts:has-text('did not answer')")
    page.unroute(lost)
    shown(page, board.run("first")["records"])
    assert page.inner_text("#alerts") == ""


def test_a_run_that_is_not_there_is_said_and_the_next_page_opens(context, board):
    page = context.new_page()
    page.goto(f"{board.url}/?token={KEYS.token}#page=run&run=0000000000000000&tab=curves")
    page.wait_for_selector("#alerts:not(:empty)")
    page.get_by_role("link", name="Runs", exact=True).click()
    page.wait_for_selector("tbody tr")


def test_eight_windows_of_one_browser_all_load_and_hear_news(context, tmp_path):
    run = made_run(tmp_path / "live", [attempt(steps=50), step(1)])
    with serving(tmp_path) as board:
        pages = [entered(context, board, of(board, "live")) for _ in range(8)]
        append(run, [step(at) for at in range(2, 20)])
        for page in pages:
            shown(page, 20)


def test_torn_replaced_and_removed_ledgers_are_right_or_said(context, tmp_path):
    run = made_run(tmp_path / "live", [attempt(steps=50), *(step(at, loss=9.0) for at in range(1, 20))])
    with serving(tmp_path) as board:
        page = entered(context, board, of(board, "live"))
        shown(page, 20)
        whole = (run / "ledger.jsonl").read_bytes()
        (run / "ledger.jsonl").write_bytes(whole + b'{"kind":"step","time":12')
        page.wait_for_timeout(600)
        shown(page, 20)
        (run / "ledger.jsonl").unlink()
        append(run, [attempt(steps=50), *(step(at, loss=1.0) for at in range(1, 9))])
        shown(page, 9)
        before = len((run / "ledger.jsonl").read_bytes())
        append(run, [step(at) for at in range(9, 12)])
        damaged = (run / "ledger.jsonl").read_bytes()
        (run / "ledger.jsonl").write_bytes(damaged[:before])
        page.wait_for_timeout(400)
        (run / "ledger.jsonl").write_bytes(
            damaged[:before] + damaged[before:].replace(b'"seconds":0.9', b'"seconds":0.8')
        )
        page.wait_for_selector("p.bad:has-text('does not follow')")
        for path in sorted(run.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        run.rmdir()
        page.wait_for_selector("#alerts:has-text('was removed')")
        page.goto(f"{board.url}/#page=runs")
        page.wait_for_selector("caption:text-is('0 of 0 runs')")


def test_a_run_that_begins_appears_and_one_that_is_deleted_goes(context, tmp_path):
    made_run(tmp_path / "old", [attempt(), step(1), ended(0, "done")])
    with serving(tmp_path) as board:
        page = entered(context, board)
        made_run(tmp_path / "new", [attempt(), step(1)])
        page.wait_for_selector("tr[data-run=new]")
        page.get_by_role("button", name="Name, tags and more of old").click()
        page.get_by_text("Delete the run directory").click()
        page.get_by_role("button", name="Delete for good").click()
        page.wait_for_selector("dialog p.bad:has-text('not the run')")
        assert (tmp_path / "old").is_dir()
        page.get_by_label("Type old to delete the run").fill("old")
        page.get_by_role("button", name="Delete for good").click()
        page.wait_for_selector("tr[data-run=old]", state="detached")
        assert not (tmp_path / "old").exists()


def test_what_is_compared_is_saved_as_numbers_and_pictures_with_axes(context, tmp_path):
    one = made_run(tmp_path / "one", [attempt(steps=40), *(step(at, loss=40.0 - at) for at in range(1, 41))])
    made_run(tmp_path / "two", [attempt(steps=40), *(step(at) for at in range(1, 21)), evaluation(20, 1.5)])
    with serving(tmp_path) as board:
        ids = ",".join(board.run(name)["id"] for name in ("one", "two"))
        page = entered(context, board, f"page=compare&runs={ids}")
        page.wait_for_selector("main[data-shown]")
        saved = {}
        for kind in ("CSV", "SVG", "PNG"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Save as {kind}").click()
            saved[kind] = Path(download.value.path()).read_bytes()
        assert page.said == []
    rows = list(csv.DictReader(saved["CSV"].decode().splitlines()))
    losses = [
        (float(row["step"]), float(row["mean"])) for row in rows if (row["name"], row["run"]) == ("train/loss", "one")
    ]
    assert losses == [(record.step, record.losses["loss"]) for record in of_kind(one, "step")]
    root = ElementTree.fromstring(saved["SVG"])
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"train/loss", "dogs/bits", "step 1", "40", "0", "39"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 1
    assert saved["PNG"].startswith(b"\x89PNG")


def telemetry(at, slowest):
    return {
        "kind": "telemetry",
        "time": 10.0 + at,
        "attempt": 1,
        "step": at,
        "steps": 10,
        "world": 2,
        "device": {},
        "phases": {"forward": 4.0},
        "host": {"resident": 1 << 28, "peak": 1 << 29},
        "ranks": {name: {"least": 1.0, "most": 2.0, "rank": slowest} for name in ("own_seconds", "host_peak")},
    }


def show(at):
    files = {"tone": f"gallery/{at}/tone.wav", "wave": f"gallery/{at}/wave.png"}
    return {"kind": "show", "time": 10.0 + at, "attempt": 1, "step": at, "text": {"sample": f"at {at}"}, "files": files}


@pytest.fixture
def shown_run(tmp_path):
    """A run with sounds and pictures at two steps, telemetry of two ranks, and the stacks of a hang."""
    told = [attempt(steps=20), *(step(at) for at in range(1, 21))]
    for at in (10, 20):
        told += [telemetry(at, slowest=at // 10 - 1), show(at)]
    run = made_run(tmp_path / "runs" / "one", told)
    for at in (10, 20):
        (run / "gallery" / str(at)).mkdir(parents=True)
        Image.new("RGB", (at, 5)).save(run / "gallery" / str(at) / "wave.png")
        with wave.open(str(run / "gallery" / str(at) / "tone.wav"), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes(16 * at))
    (run / "logs").mkdir()
    (run / "logs" / "stacks-1.txt").write_text("Current thread: in all_reduce")
    return tmp_path / "runs"


def test_sounds_play_and_pictures_are_seen_at_two_steps(context, shown_run):
    with serving(shown_run) as board:
        page = entered(context, board, of(board, "one", "gallery"))
        page.wait_for_selector("section[aria-label=wave] img")
        assert (
            page.evaluate("async () => { const i = document.querySelector('img'); await i.decode(); return i.width }")
            == 20
        )
        page.get_by_label("another step beside it").check()
        page.wait_for_selector("section[aria-label=wave] img[alt='wave at step 10']")
        seconds = """(sound) => new Promise((done) => {
          sound.onloadedmetadata = () => done(sound.duration); sound.onerror = () => done(-1); sound.load(); })"""
        first, second = page.locator("audio").all()
        assert (first.evaluate(seconds), second.evaluate(seconds)) == (0.02, 0.01)
        assert page.locator("section[aria-label=sample] pre").all_inner_texts() == ["at 20", "at 10"]
        assert page.said == []


def test_which_rank_was_slowest_is_a_map_and_the_stacks_of_a_hang_are_logs(context, shown_run):
    with serving(shown_run) as board:
        page = entered(context, board, of(board, "one", "time"))
        label = page.locator("canvas[aria-label*='Slowest rank']").get_attribute("aria-label")
        assert "rank 0: 1 times, rank 1: 1 times" in label
        assert page.locator("figure:has-text('memory/host') .plot[data-points='2']").count() == 1
        page.get_by_role("link", name="logs", exact=True).click()
        page.get_by_role("button", name="stacks-1.txt").click()
        page.wait_for_selector("pre:has-text('in all_reduce')")


def test_runs_are_grouped_and_archived(context, tmp_path):
    for name, rate in (("one", 1), ("two", 2), ("three", 1)):
        made_run(tmp_path / name, [attempt(), step(1)], {"name": name, "optimizer": {"lr": rate}})
    with serving(tmp_path) as board:
        page = entered(context, board)
        page.get_by_label("Group by").select_option("optimizer.lr")
        page.wait_for_selector("th:text-is('optimizer.lr: 2')")
        assert page.locator("th[scope=rowgroup]").all_inner_texts() == ["optimizer.lr: 1", "optimizer.lr: 2"]
        page.get_by_role("button", name="Name, tags and more of two").click()
        page.get_by_role("button", name="Archive", exact=True).click()
        page.wait_for_selector("caption:text-is('2 of 3 runs')")
        page.get_by_label("hidden and archived too").check()
        page.wait_for_selector("caption:text-is('3 of 3 runs')")


def test_a_log_axis_and_smoothing_are_drawn_and_stand_in_the_address(context, board):
    page = entered(context, board, of(board, "first"))
    shown(page, board.run("first")["records"])
    plain = page.evaluate(_INK, "train/loss")
    page.get_by_label("log axis").check()
    page.get_by_label("Smooth").fill("0.9")
    page.wait_for_timeout(500)
    assert "log=1" in page.url
    assert "smooth=0.9" in page.url
    assert page.evaluate(_INK, "train/loss") != plain
    assert page.said == []


def test_a_hundred_hostile_texts_are_texts(context, tmp_path):
    assert len(HOSTILE) == 100
    told = [attempt(steps=len(HOSTILE)) | {"host": HOSTILE[0], "after": {"code": 70, "cause": HOSTILE[1]}}]
    for number, text in enumerate(HOSTILE, start=1):
        told.append(step(number, losses={text: 1.0, "loss": 2.0}))
        told.append({"kind": "note", "time": 12.0, "attempt": 1, "text": text})
    shows = {"text": {text: text for text in HOSTILE[:20]}, "files": {text: text for text in HOSTILE}}
    told.append({"kind": "show", "time": 12.0, "attempt": 1, "step": 2, **shows})
    told.append(evaluation(3, name=HOSTILE[2], metric=HOSTILE[3]))
    folder = tmp_path / HOSTILE[1].replace("/", "")
    run = made_run(folder, [*told, ended(70, HOSTILE[0])], {"name": HOSTILE[0], HOSTILE[1]: HOSTILE[2]})
    (run / "logs").mkdir()
    (run / "logs" / HOSTILE[1]).write_text(HOSTILE[0])
    with serving(tmp_path) as board:
        id = board.run(folder.name)["id"]
        for text in HOSTILE[:15]:
            assert board.send("PATCH", f"/api/runs/{id}", {"title": text, "tags": [text]}).status == 200
        page = entered(context, board)
        for address in ["page=runs", *(f"page=run&run={id}&tab={tab}" for tab in TABS), f"page=compare&runs={id}"]:
            page.goto(f"{board.url}/#{address}")
            page.wait_for_selector("body[data-ready]")
            page.wait_for_timeout(50)
            assert page.evaluate("window.bad") is None, address
            assert page.locator("main script, main svg[onload], main img[onerror]").count() == 0
        page.goto(f"{board.url}/#page=run&run={id}&tab=ledger")
        page.wait_for_selector("td:text-is('note')")
        assert page.evaluate("window.bad") is None
        assert page.said == []


def test_scripts_and_html_that_get_into_the_page_do_not_run(page):
    made = "const s = document.createElement('script'); try { s.textContent = 'window.bad = 1' } catch (e) {}"
    inline = f"() => {{ {made}; document.body.append(s) }}"
    page.evaluate(inline)
    assert page.evaluate("window.bad") is None
    html = "() => { try { document.body.innerHTML = '<b>' } catch (e) { return String(e) } }"
    assert "TrustedHTML" in page.evaluate(html)


@contextmanager
def another_site(html):
    """A page of another server on this machine; what it was sent is in `cookies`."""
    cookies = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            cookies.append(self.headers.get("cookie") or "")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, cookies
    server.shutdown()


def test_a_board_that_only_shows_has_nothing_to_steer_with(context, runs):
    with serving(runs, read_only=True) as board:
        page = entered(context, board)
        assert page.get_by_role("button", name="Name, tags and more of first").count() == 0
        page.goto(f"{board.url}/#{of(board, 'first', 'commits')}")
        page.wait_for_selector("nav.tabs")
        assert page.locator("[role=group][aria-label=Steer]").is_hidden()
        assert page.get_by_role("button", name="verify step-00000200").count() == 0


def test_a_link_on_another_site_leads_in(context, board):
    with another_site(f'<a href="{board.url}/?token={KEYS.token}">go</a>') as (port, _):
        page = context.new_page()
        page.goto(f"http://localhost:{port}/")
        page.click("a")
        page.wait_for_selector("body[data-ready]")
        assert "first" in page.inner_text("main")


_ATTACK = """async (board) => {
  const tried = {}, commands = `${board}/api/runs/x/commands`;
  const post = {method: 'POST', credentials: 'include', body: '{}'};
  const ways = {
    read: () => fetch(`${board}/api/runs`, {credentials: 'include'}),
    blind: () => fetch(commands, {...post, mode: 'no-cors'}),
    json: () => fetch(commands, {...post, headers: {'content-type': 'application/json'}}),
  };
  for (const [name, way] of Object.entries(ways)) {
    try {
      const answer = await way();
      tried[name] = `${answer.type} ${answer.status}`;
    } catch { tried[name] = 'refused'; }
  }
  const stream = new EventSource(`${board}/api/events`, {withCredentials: true});
  tried.events = await new Promise((done) => {
    stream.onopen = () => done('open');
    stream.onerror = () => done('refused');
  });
  const frame = document.createElement('iframe');
  frame.src = `${board}/`;
  document.body.append(frame);
  await new Promise((done) => setTimeout(done, 300));
  try { tried.frame = frame.contentDocument ? 'open' : 'refused'; } catch { tried.frame = 'refused'; }
  return tried;
}"""


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
def test_pages_of_other_ports_and_sites_read_and_steer_nothing(context, board, host):
    page = entered(context, board)
    with another_site("<h1>other</h1>") as (port, cookies):
        page.goto(f"http://{host}:{port}/")
        tried = page.evaluate(_ATTACK, board.url)
        # That a cookie goes to other ports is why commands need the key besides.
        if host == "127.0.0.1":
            assert any(KEYS.session in cookie for cookie in cookies)
            assert page.evaluate("localStorage.getItem('board-key')") is None
    blind = tried.pop("blind")
    assert blind in ("refused", "opaque 0")
    assert set(tried.values()) == {"refused"}


def test_another_name_that_leads_here_is_turned_away(context, board):
    page = entered(context, board)
    answer = page.goto(f"http://evil.example:{board.port}/")
    assert answer.status == 421


def test_the_first_page_is_small(context, board):
    page = context.new_page()
    sizes = []
    page.on("response", lambda answer: sizes.append(len(answer.body())) if answer.ok else None)
    page.goto(f"{board.url}/?token={KEYS.token}")
    page.wait_for_selector("body[data-ready]")
    assert 10_000 < sum(sizes) < 300_000


def test_the_vendored_scripts_are_those_of_the_list():
    import hashlib
    from pathlib import Path

    import drivetrain.board

    folder = Path(drivetrain.board.__file__).parent / "static" / "vendor"
    told = dict(re.findall(r"\| (\S+) \|.* ([0-9a-f]{64}) \|", (folder / "README.md").read_text()))
    there = {path.name for path in folder.iterdir() if path.suffix in (".js", ".css", ".ts")}
    assert there == told.keys()
    for name, digest in told.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
