"""TensorBoard 2.21 over the same series, in turn with the board, both cold: time to a chart, memory, planted spikes."""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from browser import WIDTH, Page, Times, chromium, first_curves
from ledgers import SPIKES
from server import peak

sys.path.insert(0, str(Path(__file__).parents[1]))
from environments import environment

HERE = Path(__file__).parent
ROUNDS, HIGH = 2, 1200
# It says that 0 is all points. Its fast reader then shows none: so as many as there are.
_WAYS: Mapping[str, Sequence[str]] = {"default": (), "all_points": ("--samples_per_plugin", "scalars=1000000")}
_CURVE = "/data/plugin/scalars/scalars?run=long&tag=train%2Floss"
# It has no mark for what is drawn. Two frames after the points have come is the earliest that they can be seen.
_SHOWN = """async () => {
  const come = () => performance.getEntriesByType('resource').some((one) => one.name.endsWith('/timeSeries'));
  while (!come()) await new Promise((resolve) => setTimeout(resolve, 4));
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  return performance.now() / 1e3;
}"""


def figures(run: Path, home: Path) -> dict[str, Any]:
    """Medians of rounds in each of which every one starts anew."""
    python = environment("tensorboard", "tensorboard==2.21.*", alone=True)
    log = home / "events"
    command = [str(python), str(HERE / "event_files.py"), str(run / "ledger.jsonl"), str(log / "long")]
    subprocess.run(command, check=True)
    steps = 1000 * sum(1 for line in (run / "ledger.jsonl").open() if line.startswith('{"kind":"commit"'))
    told: dict[str, list[Times]] = {"board": [], **{way: [] for way in _WAYS}}
    with chromium() as browser:
        for number in range(ROUNDS):
            told["board"].append(first_curves(browser, run, home / f"board-{number}", HIGH))
            for way, options in _WAYS.items():
                told[way].append(once(browser, python, [str(log), *options], steps))
    medians = {}
    for way, rounds in told.items():
        medians[way] = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return medians


def once(browser: Any, python: Path, options: Sequence[str], steps: int) -> Times:
    """Seconds to a first chart, and to the whole curve; how many points it has, and megabytes of its processes."""
    with tensorboard(python, options) as (base, process, began):
        points = curve(base)
        told = {"command_to_points_s": time.perf_counter() - began}
        page = browser.new_context(viewport={"width": WIDTH, "height": HIGH}).new_page()
        shown(page, base)
        told["command_to_chart_s"] = time.perf_counter() - began
        while points[-1][1] < steps:
            time.sleep(0.1)
            points = curve(base)
        told["command_to_whole_s"] = time.perf_counter() - began
        told["page_of_whole_s"] = shown(page.context.new_page(), base)
        page.context.close()
        planted = [point for point in points if point[1] % SPIKES == 0]
        told |= {"points": len(points), "spikes": len(planted), "highest": max(point[2] for point in points)}
        told["peak_mb"] = sum(map(peak, [process, *process.children(recursive=True)]))
        return told


@contextmanager
def tensorboard(python: Path, options: Sequence[str]) -> Iterator[tuple[str, psutil.Process, float]]:
    """It, as its command starts it: its address, process, and when the command was given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(python.parent / "tensorboard"), "--host", "127.0.0.1", "--port", str(port), "--logdir", *options]
    began = time.perf_counter()
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", psutil.Process(server.pid), began
    finally:
        server.terminate()
        server.wait()


def curve(base: str) -> list[list[Any]]:
    """Its points of the loss, once there are some: time, step, value."""
    while True:
        try:
            if points := json.load(urllib.request.urlopen(base + _CURVE)):
                return points
        except urllib.error.URLError:
            # It does not answer yet, or has not read so far: then it says that there is no such curve.
            time.sleep(0.05)


def shown(page: Page, base: str) -> float:
    """Seconds from opening its page to the first charts."""
    page.set_default_timeout(300_000)
    # With a million points the page's own load takes longer than any browser waits for one.
    page.goto(f"{base}/#timeseries", wait_until="commit")
    return page.evaluate(_SHOWN)
