"""A report of one file opens from the disk, without a server and without a network, and shows what the board does."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

from boards import made_run
from browsers import launched, needed, violations
from drivetrain.cli.main import run as command
from drivetrain.runtime.lease import Lease
from records import attempt, commit, ended, evaluation, rollback, step

pytestmark = [pytest.mark.xdist_group("board"), pytest.mark.timeout(120)]


@pytest.fixture
def runs(tmp_path):
    first = [attempt(steps=400), *(step(at, loss=2 + (at == 123) * 7) for at in range(1, 301))]
    scored = [evaluation(100, 2.5), evaluation(200, 1.5), commit(200, at=220.0), rollback(300, 250, at=400.0)]
    later = [*(step(at, at=500.0, loss=1.0) for at in range(251, 401)), ended(0, "</script><b>done", at=901.0)]
    one = made_run(tmp_path / "one", [*first, *scored, *later])
    return one, made_run(tmp_path / "two", [attempt(), *(step(at) for at in range(1, 31))], {"name": "</script>"})


def test_a_folder_without_a_ledger_and_several_runs_without_a_page_are_refused(runs, tmp_path, capsys):
    assert command(["report", str(tmp_path / "none"), "--html", str(tmp_path / "x.html")]) == 66
    assert command(["report", *map(str, runs)]) == 64
    assert "--html" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_damaged_ledger_makes_no_page(runs, tmp_path):
    data = (runs[0] / "ledger.jsonl").read_bytes()
    (runs[0] / "ledger.jsonl").write_bytes(data.replace(b'"seconds":0.9', b'"seconds":0.8', 1))
    assert command(["report", str(runs[0]), "--html", str(tmp_path / "x.html")]) == 74


@needed
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_file_opens_from_the_disk_and_steers_nothing(runs, tmp_path, scheme):
    from playwright.sync_api import sync_playwright

    to = tmp_path / "report.html"
    assert command(["report", *map(str, runs), "--html", str(to)]) == 0
    assert to.stat().st_mode & 0o777 == 0o600
    assert not re.search(r"""(?:src|href)=["']https?:""", to.read_text())
    with sync_playwright() as playwright:
        browser = launched(playwright)
        context = browser.new_context(offline=True, color_scheme=scheme)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"file://{to}")
        page.wait_for_selector("body[data-ready]")
        assert "400 of 400" in page.inner_text("table")
        assert violations(page) == []
        page.get_by_role("link", name="one", exact=True).click()
        page.wait_for_selector('main[data-shown="456"]')
        assert page.locator("[role=group][aria-label=Steer]").is_hidden()
        for axis in ("samples", "tokens", "seconds", "time"):
            page.get_by_label("By").select_option(axis)
            page.wait_for_timeout(100)
        for tab in ("time", "data", "gallery", "commits", "recipe", "plan", "ledger", "logs"):
            page.get_by_role("link", name=tab, exact=True).click()
            page.wait_for_selector(f"nav.tabs a[aria-current]:text-is('{tab}')")
            page.wait_for_selector("body[data-ready]")
            assert violations(page) == []
        page.get_by_role("link", name="Compare", exact=True).click()
        page.wait_for_selector("caption:has-text('Keys')")
        assert "one" in page.inner_text("main")
        assert "two" in page.inner_text("main")
        assert page.inner_text("#alerts") == ""
        assert said == []
        browser.close()


def kept(file):
    """What a report holds of what its pages ask for."""
    (told,) = re.findall('id="kept">([^<]*)<', file.read_text())
    return json.loads(gzip.decompress(base64.b64decode(told)))


def test_a_report_of_a_run_that_trains_says_so(tmp_path):
    run = made_run(tmp_path / "run", [attempt(steps=9), step(1)])
    lease = Lease.take(run, commits=list)
    try:
        assert command(["report", str(run), "--html", str(tmp_path / "x.html")]) == 0
    finally:
        lease.release()
    assert [row["state"] for row in kept(tmp_path / "x.html")["answers"]["/api/runs"]["runs"]] == ["trains"]


def test_twelve_curves_take_less_than_400_kb(tmp_path):
    draw = np.random.default_rng(0)
    told = [attempt(steps=20_000)]
    for at in range(1, 20_001):
        told.append(step(at, losses={f"loss-{n}": float(draw.normal()) for n in range(7)}))
        if at % 20 == 0:
            told += [evaluation(at, float(draw.normal())), commit(at, at=10.0 + at)]
    run = made_run(tmp_path / "run", told)
    assert command(["report", str(run), "--html", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").stat().st_size < 400e3
