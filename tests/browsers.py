"""A real Chromium for tests of the board's page: Debian's, driven by Playwright."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from typing import Any

import pytest

CHROMIUM = os.environ.get("DRIVETRAIN_CHROMIUM") or shutil.which("chromium")
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]  # what root in a small container needs

needed = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium here: apt-get install chromium, and pip install playwright",
)
"""The mark of tests that open a page."""


def launched(playwright: Any, *flags: str) -> Any:
    """A browser without a window."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=[*_FLAGS, *flags])


def violations(page: Any) -> list[list[Any]]:
    """What axe-core finds serious or critical: [rule, impact, how often, where first]. It runs in a world of its own,
    since the page's policy lets in no script of others."""
    from axe_playwright_python.base import AXE_FILE_PATH

    tools = page.context.new_cdp_session(page)
    frame = tools.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = tools.send("Page.createIsolatedWorld", {"frameId": frame})["executionContextId"]
    tools.send("Runtime.evaluate", {"expression": AXE_FILE_PATH.read_text(), "contextId": world})
    told = "v => [v.id, v.impact, v.nodes.length, v.nodes[0].html.slice(0, 160)]"
    asked = f"axe.run(document, {{resultTypes: ['violations']}}).then(r => JSON.stringify(r.violations.map({told})))"
    answer = tools.send(
        "Runtime.evaluate", {"expression": asked, "contextId": world, "awaitPromise": True, "returnByValue": True}
    )
    tools.detach()
    return [one for one in json.loads(answer["result"]["value"]) if one[1] in ("serious", "critical")]
