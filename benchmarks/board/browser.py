"""The page in a real Chromium over a long run: first curves, zooms, new steps, spikes in the pixels."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from ledgers import SPIKES, plain_row
from server import Served, serving

from drivetrain.ledger.ledger import LedgerFile

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from browsers import launched

Page: TypeAlias = Any
Times: TypeAlias = dict[str, float]
STARTS, ZOOMS, NEW = 5, 30, 20
WIDTH = 1400

# The page says in an attribute that all curves which can be seen are on their canvases; a frame after that they are on
# the screen. What began it is the last thing that a person did.
_WATCH = """
  window.drawn = [];
  window.did = 0;
  for (const kind of ['keyup', 'mouseup', 'dblclick'])
    addEventListener(kind, (event) => { window.did = event.timeStamp; }, true);
  addEventListener('keydown', (event) => { window.did = event.timeStamp; }, true);
  new MutationObserver(() => {
    const one = { canvas: performance.now(), clock: Date.now() };
    window.drawn.push(one);
    requestAnimationFrame(() => setTimeout(() => { one.frame = performance.now(); one.seen = Date.now(); }));
  }).observe(document, { subtree: true, attributes: true, attributeFilter: ['data-shown'] });
"""
_DRAWN = """async (count) => {
  while (!(window.drawn[count]?.frame)) await new Promise((resolve) => setTimeout(resolve, 4));
  return { ...window.drawn[count], did: window.did };
}"""
# Where a chart has the line's or the band's blue, as shares of its width and height.
_INK = """() => {
  const chart = document.querySelector('[data-name="train/loss"]'), canvas = chart.querySelector('canvas');
  const over = chart.querySelector('.u-over'), ratio = devicePixelRatio, found = [];
  const wide = over.offsetWidth * ratio, high = over.offsetHeight * ratio;
  const draw = canvas.getContext('2d');
  const data = draw.getImageData(over.offsetLeft * ratio, over.offsetTop * ratio, wide, high).data;
  for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
    const [r, , b, a] = data.slice(4 * (y * wide + x), 4 * (y * wide + x) + 4);
    if (a > 60 && b > r + 60) found.push([x / wide, y / high]);
  }
  return found;
}"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = launched(playwright)
        yield made
        made.close()


def entered(browser: Any, board: Served, high: int, address: str = "page=runs") -> Page:
    """A window of its own at a page of the board, so many pixels high."""
    context = browser.new_context(viewport={"width": WIDTH, "height": high})
    context.add_init_script(_WATCH)
    page = context.new_page()
    page.goto(f"{board.address}#{address}")
    page.wait_for_selector("body[data-ready]")
    return page


def curves_of(id: str) -> str:
    """What the address of a run's curves names."""
    return f"page=run&run={id}&tab=curves"


def drawn(page: Page, count: int = 0) -> Times:
    """When curves were drawn for the time of this number, in milliseconds."""
    return page.evaluate(_DRAWN, count)


def figures(run: Path, home: Path, high: int) -> dict[str, Any]:
    """All of a run, in a window so high that twelve charts are drawn."""
    with chromium() as browser:
        told: dict[str, Any] = {"cold": first_curves(browser, run, home, high)}
        starts = [first_curves(browser, run, home, high) for _ in range(STARTS)]
        told["warm"] = {name: statistics.median(one[name] for one in starts) for name in starts[0]}
        with serving(run.parent, home) as board:
            page = entered(browser, board, high, curves_of(board.run()["id"]))
            drawn(page)
            told["charts"] = page.locator(".plot[data-points]").count()
            told["spikes"] = spikes(page, board.run()["step"])
            told["zoom"] = zooms(page)
            told["new_step"] = new_steps(page, run, board.run()["step"])
            told["server"] = board.memory()
    return told


def first_curves(browser: Any, run: Path, home: Path, high: int) -> Times:
    """Seconds from the command to the page, from opening a run's page to its curves, and to those of the whole."""
    with serving(run.parent, home) as board:
        page = entered(browser, board, high)
        told = {"command_to_page_s": time.perf_counter() - board.began}
        id = board.rows()[0]["id"]
        page = page.context.new_page()
        page.goto(f"{board.base}/#{curves_of(id)}")
        first = drawn(page)
        told["command_to_curves_s"] = time.perf_counter() - board.began
        told |= {"curves_on_canvas_s": first["canvas"] / 1e3, "curves_on_screen_s": first["frame"] / 1e3}
        records = board.run()["records"]
        page.wait_for_selector(f'main[data-shown="{records}"]')
        told["command_to_whole_s"] = time.perf_counter() - board.began
        told |= board.memory()
        page.context.close()
    return told


def zooms(page: Page) -> Times:
    """Milliseconds from a gesture to all curves, of dragging, of keys in turn, and of going back to the whole."""
    draw, taken = np.random.default_rng(0), []
    for _ in range(ZOOMS):
        lo, hi = sorted(draw.uniform(0.02, 0.98, 2))
        taken.append(after(page, lambda lo=lo, hi=hi: drag(page, lo, max(hi, lo + 0.02))))
        page.locator('[data-name="train/loss"] .plot').focus()
        page.keyboard.press("Home")
        taken.append(after(page, lambda: page.keyboard.press("+")))
        taken.append(after(page, lambda: page.keyboard.press("0")))
    told: Times = {"zooms": len(taken)}
    for name in ("canvas", "frame"):
        spans = [one[name] - one["did"] for one in taken]
        told |= {f"{name}_median_ms": statistics.median(spans), f"{name}_p95_ms": float(np.quantile(spans, 0.95))}
    return told


def after(page: Page, act: Callable[[], None]) -> Times:
    """When curves were drawn after what a person does."""
    count = page.evaluate("window.drawn.length")
    act()
    return drawn(page, count)


def drag(page: Page, lo: float, hi: float) -> None:
    """Choose a part of the loss's chart with the mouse, in shares of its width."""
    box = page.locator('[data-name="train/loss"] .u-over').bounding_box()
    high = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + lo * box["width"], high)
    page.mouse.down()
    page.mouse.move(box["x"] + hi * box["width"], high, steps=3)
    page.mouse.up()


def new_steps(page: Page, run: Path, last: int) -> Times:
    """Milliseconds from before a record is appended until the page shows it; the ledger is left as it was."""
    draw, taken = random.Random(0), []
    path = run / "ledger.jsonl"
    size, ledger = path.stat().st_size, LedgerFile.open(path)
    try:
        for number in range(1, NEW + 1):
            time.sleep(draw.uniform(1.0, 1.5))
            count = page.evaluate("window.drawn.length")
            row = plain_row(last + number, draw)
            appended = time.time()
            ledger.append_steps(1, [row])
            taken.append(drawn(page, count)["seen"] - 1e3 * appended)
    finally:
        ledger.close()
        with path.open("rb+") as file:
            file.truncate(size)
    return {"median_ms": statistics.median(taken), "most_ms": max(taken)}


def spikes(page: Page, steps: int) -> dict[str, int]:
    """How many of the planted spikes stand in the loss's pixels, and what else is as high."""
    ink = page.evaluate(_INK)
    # The first steps' loss is as high as a spike.
    high = [x for x, y in ink if y < 0.4 and x > 0.01]
    planted = [at / steps for at in range(SPIKES, steps + 1, SPIKES)]
    shown = sum(any(abs(x - at) < 0.006 for x in high) for at in planted)
    stray = sum(all(abs(x - at) >= 0.012 for at in planted) for x in high)
    return {"planted": len(planted), "shown": shown, "stray_pixels": stray}
