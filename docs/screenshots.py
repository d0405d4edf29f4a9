"""Trains two short runs and photographs every page of the board over them, as docs/board/*.png: `make screenshots`.

It needs Chromium (Debian: apt-get install chromium), and takes five minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import drivetrain
from browsers import launched

SCREENS = Path(__file__).parent / "board"
RECIPE = Path(drivetrain.__file__).parent / "recipes" / "quickstart.yaml"
SHORT = [
    "launch.threads=1",
    "telemetry.plan=1s",
    "budget.steps=400",
    "evaluate.every.steps=100",
    "checkpoint.every.steps=100",
    "statistics.every.steps=20",
]
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 360, "height": 740}
TABS = ("curves", "time", "data", "gallery", "commits", "recipe", "plan", "ledger", "logs")
COLOURS = 256  # of a picture: what tells two curves apart stays, and a picture is a fifth of its size


def main() -> None:
    """All of it, in a folder that is removed, with jobs and names of its own."""
    folder = Path(tempfile.mkdtemp(prefix="screenshots-"))
    state = {name: str(folder / name) for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    os.environ |= state | {"TZ": "UTC"}
    os.chdir(folder)
    try:
        photographed()
    finally:
        os.chdir(SCREENS)
        shutil.rmtree(folder)


def photographed() -> None:
    """Two runs below `runs/`: a job, and one with another learning rate, told things as it trains and killed once."""
    SCREENS.mkdir(exist_ok=True)
    # A copy: the page of the recipe shows where its values come from, and no place of this machine.
    shutil.copy(RECIPE, ".")
    # One after the other: a plan is made by what a run leaves of the processors.
    quietly("submit", "quickstart.yaml", "--run", "runs/quickstart", *SHORT)
    until_step("quickstart", 400)
    asked = command("train", "quickstart.yaml", "--run", "runs/low-rate", "name=low-rate", "optimizer.lr=1e-3", *SHORT)
    killed = subprocess.Popen(asked, stdout=subprocess.DEVNULL)
    until_step("low-rate", 120)
    with board() as address, page_of(address) as page:
        runs = ids(page)
        steered(page, runs["low-rate"])
        quietly("control", "runs/low-rate", "evaluate")
        quietly("control", "runs/low-rate", "profile", "3")
        until_step("low-rate", 230)
        killed.kill()
        killed.wait()
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL)
        quietly("checkpoint", "pin", "runs/low-rate", "400")
        looked_at(page, runs)


def command(*words: str) -> list[str]:
    """The command line of `drivetrain`."""
    return [sys.executable, "-m", "drivetrain", *words]


def quietly(*words: str) -> None:
    """Run a command of `drivetrain`."""
    subprocess.run(command(*words), check=True, stdout=subprocess.DEVNULL)


def until_step(name: str, number: int) -> None:
    """Wait until a run has made so many steps."""
    ledger = Path("runs", name, "ledger.jsonl")
    while not ledger.exists() or f'"step":{number},'.encode() not in ledger.read_bytes():
        time.sleep(0.2)


@contextmanager
def board() -> Iterator[str]:
    """A board over `runs/`: its first address."""
    server = subprocess.Popen(command("board", "--port", "0"), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


@contextmanager
def page_of(address: str) -> Iterator[Any]:
    """A page of a browser that has entered."""
    with sync_playwright() as playwright:
        chromium = launched(playwright)
        page = chromium.new_page(viewport=WIDE, timezone_id="UTC")
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        yield page
        chromium.close()


def ids(page: Any) -> dict[str, str]:
    """The ids of runs by their names."""
    rows = page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]
    return {row["name"]: row["id"] for row in rows}


def steered(page: Any, run: str) -> None:
    """What is said before a value is set, and what the ledger has of it."""
    opened(page, f"page=run&run={run}&tab=curves")
    page.get_by_role("button", name="set", exact=True).click()
    page.get_by_label("KEY=VALUE").fill("optimizer.lr=2e-3")
    page.get_by_role("button", name="What will it do?").click()
    page.get_by_label("I mean it").check()
    kept(page, "steer")
    page.get_by_role("button", name="Do it").click()
    page.wait_for_selector("dialog[data-done]")
    kept(page, "steered")
    page.keyboard.press("Escape")


def looked_at(page: Any, runs: Mapping[str, str]) -> None:
    """Every page, light and wide; curves also dark, and narrow."""
    of_run = f"page=run&run={runs['low-rate']}&tab="
    for name, address in {
        "runs": "page=runs",
        **{tab: of_run + tab for tab in TABS},
        "data": f"{of_run}data&position=0",
        "compare": f"page=compare&runs={','.join(runs.values())}",
        "jobs": "page=jobs",
    }.items():
        opened(page, address)
        if name == "data":
            page.wait_for_selector("caption:has-text('by position')")
        kept(page, name)
    opened(page, f"{of_run}curves")
    page.locator(".plot").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    kept(page, "record")
    page.keyboard.press("Escape")
    page.emulate_media(color_scheme="dark")
    settled(page)
    kept(page, "dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROW)
    settled(page)
    kept(page, "narrow")


def opened(page: Any, address: str) -> None:
    """The page of this address, drawn."""
    page.evaluate(f"location.hash = {address!r}")
    settled(page)


def settled(page: Any) -> None:
    """Wait until nothing is asked and drawn any more."""
    page.wait_for_timeout(500)
    page.wait_for_selector("body[data-ready]")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


def kept(page: Any, name: str) -> None:
    """Keep what is seen, in few colours."""
    path = SCREENS / f"{name}.png"
    page.screenshot(path=path)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


if __name__ == "__main__":
    main()
