"""A run that trains is watched and steered from the page: each command is in its ledger once."""

import json
import subprocess
import sys
import time

import pytest

from boards import KEYS, append, made_run, serving
from browsers import launched, needed
from drivetrain.launch.inbox import new_id, waits
from drivetrain.ledger.ledger import read
from records import attempt, of_kind, step

pytestmark = [pytest.mark.xdist_group("board"), pytest.mark.timeout(180)]


DRIVETRAIN = [sys.executable, "-m", "drivetrain"]


@pytest.fixture
def running(tiny, tmp_path):
    """A run that would train for long, and its process."""
    path, run = tmp_path / "recipe.json", tmp_path / "runs" / "live"
    every = {"every": {"steps": 50_000}, "batch": 256}
    path.write_text(json.dumps(tiny | {"budget": {"steps": 100_000}, "evaluate": every}))
    command = [*DRIVETRAIN, "train", str(path), "--run", str(run), "telemetry.plan=null"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    end = time.monotonic() + 60
    while not (run / "ledger.jsonl").is_file() or b'"step"' not in (run / "ledger.jsonl").read_bytes():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    yield run, process
    process.kill()
    process.wait()


def told(page, verb, argument=""):
    """Tell the run something as a person does; returns how it ended."""
    page.get_by_role("button", name=verb, exact=True).click()
    if argument:
        page.locator("dialog input").first.fill(argument)
        page.get_by_role("button", name="What will it do?").click()
    do = page.get_by_role("button", name=f"Do it: {verb}")
    do.wait_for()
    assert page.locator("dialog p").all_inner_texts()
    if page.get_by_label("it cannot be undone").count():
        do.click()
        page.wait_for_selector("dialog p.bad:has-text('tick the box')")
        page.get_by_label("it cannot be undone").check()
    do.click()
    page.wait_for_selector("dialog[data-done]", timeout=30_000)
    done = page.locator("dialog").get_attribute("data-done")
    page.get_by_role("button", name="Close").click()
    return done


@needed
def test_a_run_is_watched_paused_resumed_set_and_stopped_from_the_page(running, tmp_path):
    from playwright.sync_api import sync_playwright

    run, process = running
    with serving(tmp_path / "runs") as board, sync_playwright() as playwright:
        browser = launched(playwright)
        page = browser.new_page()
        page.goto(f"{board.url}/?token={KEYS.token}")
        page.wait_for_selector("tr[data-run=live] .state.trains")
        page.get_by_role("link", name="live").click()
        page.wait_for_selector("main[data-shown]")
        first = int(page.get_attribute("main", "data-shown"))
        page.wait_for_selector(f"main:not([data-shown='{first}'])")
        assert told(page, "pause") == "done"
        page.wait_for_selector(".state.paused")
        before = sum(1 for _ in read(run / "ledger.jsonl"))
        assert told(page, "set", "optimizer.lr=5e-4") == "done"
        assert told(page, "set", "optimizer.lr=-3") == "refused"
        assert sum(1 for _ in read(run / "ledger.jsonl")) == before + 2
        one = f"/api/runs/{board.run('live')['id']}/commands"
        again = board.send("POST", one, {"verb": "set", "argument": "optimizer.lr=1e-5"})
        assert "it is 5e-4 now" in again.json["affects"]
        for key in ("batch.size", "optimzer.lr", "seed"):
            refused = board.send("POST", one, {"verb": "set", "argument": f"{key}=32"})
            assert (refused.status, f"{key} cannot change" in refused.json["error"]) == (422, True)
        assert told(page, "pin") == "done"
        assert told(page, "resume") == "done"
        page.wait_for_selector(".state.trains")
        assert told(page, "stop") == "done"
        assert process.wait(timeout=60) == 75
        page.wait_for_selector(".state.stopped")
        # What it did is proved from the page, too.
        page.get_by_role("link", name="ledger", exact=True).click()
        page.get_by_role("button", name="Verify the whole run").click()
        # The certificate fills as it goes: the data are looked at last.
        page.wait_for_selector("caption:text-is('Certificate')", timeout=60_000)
        page.wait_for_selector("[role=status]:text-is('Everything holds.')", timeout=60_000)
        assert "chain, attempts, samples, commands" in page.inner_text("main")
        page.get_by_role("link", name="data", exact=True).click()
        page.get_by_role("button", name="Show").click()
        page.wait_for_selector("caption:text-is('Samples, by position')", timeout=60_000)
        told_by_command = json.loads(subprocess.check_output([*DRIVETRAIN, "data", "inspect", str(run), "--json"]))
        row = page.locator("table", has_text="Samples, by position").locator("tbody tr").first
        assert told_by_command[0]["documents"][0]["text"][:20] in row.inner_text()
        browser.close()
    verbs = [record.verb for record in of_kind(run, "command")]
    assert verbs == ["pause", "set", "set", "pin", "resume", "stop"]


def test_a_command_that_is_sent_many_times_and_to_a_restarted_board_is_done_once(running, tmp_path):
    run, _ = running
    with serving(tmp_path / "runs") as board:
        id = board.run("live")["id"]
        asked = board.send("POST", f"/api/runs/{id}/commands", {"verb": "save", "argument": ""}).json
        assert "commit" in asked["affects"]
        assert not of_kind(run, "command")
        path = f"/api/runs/{id}/commands/{asked['id']}"
        answers = [board.send("PUT", path, {"verb": "save", "argument": ""}).json for _ in range(20)]
        assert {answer["id"] for answer in answers} == {asked["id"]}
    with serving(tmp_path / "runs") as board:
        board.run("live")
        end = time.monotonic() + 30
        while (answer := board.send("PUT", path, {"verb": "save", "argument": ""}).json)["state"] == "left":
            assert time.monotonic() < end
        assert answer["state"] == "done"
        assert answer["record"]["id"] == asked["id"]
        listed = board.get(f"/api/runs/{id}/commands")["commands"]
    assert [one["id"] for one in listed] == [asked["id"]]
    assert len(of_kind(run, "command")) == 1


def test_a_run_that_is_killed_is_seen_to_be_gone_and_cannot_be_told_anything(running, tmp_path):
    run, process = running
    with serving(tmp_path / "runs") as board:
        row = board.run("live")
        assert row["state"] == "trains"
        assert board.send("DELETE", f"/api/runs/{row['id']}", {"confirm": "live"}).status == 409
        assert run.is_dir()
        import os
        import signal

        from drivetrain.runtime.lease import holder_sign

        process.kill()
        process.wait()
        os.kill(holder_sign(run).holder.pid, signal.SIGKILL)
        end = time.monotonic() + 15
        while (row := board.run("live"))["state"] == "trains":
            assert time.monotonic() < end
            time.sleep(0.1)
        assert row["state"] == "cut off"
        answer = board.send("POST", f"/api/runs/{row['id']}/commands", {"verb": "pause", "argument": ""})
        assert answer.status == 404
        assert "nobody trains" in answer.json["error"]


@pytest.mark.parametrize(
    ("verb", "argument"), [("explode", ""), ("pause", "now"), ("set", ""), ("profile", "x"), (None, ""), ("set", 7)]
)
def test_what_is_no_command_is_said_to_be_none(tmp_path, verb, argument):
    made_run(tmp_path / "one", [attempt(), step(1)])
    with serving(tmp_path) as board:
        id = board.run("one")["id"]
        assert board.send("POST", f"/api/runs/{id}/commands", {"verb": verb, "argument": argument}).status == 400
        assert board.send("PUT", f"/api/runs/{id}/commands/../../x", {"verb": "stop"}).status in (400, 404)
        assert board.send("PUT", f"/api/runs/{id}/commands/{'1' * 20}-zz", {"verb": "stop"}).status == 400
        assert not waits(tmp_path / "one", new_id())
        append(tmp_path / "one", [step(2)])
