"""A job that was submitted is seen, read, cancelled and requeued from the page."""

import pytest

from boards import KEYS, serving
from browsers import launched, needed

pytestmark = [needed, pytest.mark.xdist_group("board"), pytest.mark.timeout(180)]


def test_a_job_is_followed_cancelled_and_requeued_from_the_page(desk):
    from playwright.sync_api import sync_playwright

    job = desk.submit(desk.write("paced.yaml"), to="local")
    desk.until(job, "running", step=3)
    with serving(desk.folder, state=desk.folder / "state") as board, sync_playwright() as playwright:
        browser = launched(playwright)
        page = browser.new_page()
        page.goto(f"{board.url}/?token={KEYS.token}#page=jobs")
        row = page.locator(f"tr:has-text('{job}')")
        row.get_by_text("running", exact=True).first.wait_for()
        page.get_by_role("button", name=f"log of {job}").click()
        page.get_by_role("region", name=f"Log of {job}").get_by_text("1 process, 40 steps").wait_for(timeout=60_000)
        page.keyboard.press("Escape")
        page.get_by_role("button", name=f"cancel {job}").click()
        page.get_by_role("button", name="cancel it").click()
        row.get_by_text("cancelled", exact=False).first.wait_for(timeout=60_000)
        desk.until(job, "cancelled")
        desk.gate.touch()
        page.get_by_role("button", name=f"requeue {job}").click(timeout=60_000)
        page.get_by_role("button", name="requeue it").click()
        row.get_by_text("succeeded").first.wait_for(timeout=90_000)
        assert "40/40" in row.inner_text()
        assert page.get_by_role("button", name=f"requeue {job}").count() == 0
        browser.close()


def test_a_board_that_only_shows_acts_on_no_job(desk):
    desk.gate.touch()
    job = desk.submit(desk.write("paced.yaml"), to="local")
    desk.until(job, "succeeded")
    with serving(desk.folder, state=desk.folder / "state", read_only=True) as board:
        assert [row["job"] for row in board.get("/api/jobs")["jobs"]] == [job]
        assert board.send("POST", f"/api/jobs/{job}", {"act": "requeue"}).status == 403


@pytest.mark.parametrize("name", ["none-00000000", "--help", "..%2f..%2fx"])
def test_what_is_no_job_is_said(desk, name):
    with serving(desk.folder, state=desk.folder / "state") as board:
        answer = board.send("POST", f"/api/jobs/{name}", {"act": "cancel"})
        assert 400 <= answer.status < 500
        assert answer.json["error"]
