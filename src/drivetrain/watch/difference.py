"""What `drivetrain diff` has found, for people: what decides bits first, with the lines of changed code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from drivetrain.spec.text import printable, shortened
from drivetrain.watch.table import say

_WIDE = 60  # characters of a value
_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Print what `api.diff` returned."""
    old, new = printable(found["old"]), printable(found["new"])
    deciding = [each for each in found["differences"] if each["bits"]]
    others = [each for each in found["differences"] if not each["bits"]]
    verdict = f"{old} and {new}: the same in all that decides bits"
    if deciding:
        count = "1 difference decides" if len(deciding) == 1 else f"{len(deciding)} differences decide"
        verdict = f"{old} and {new}: {count} bits"
    say(console, Text(verdict, style="bold"))
    for each in deciding:
        _line(console, each, "")
    if others:
        say(console, Text("these decide none:", style="dim"))
    for each in others:
        _line(console, each, "dim")
    for what in found["unknown"]:
        say(console, Text(f"not compared: {printable(what)}", style="yellow"))


def _line(console: Console, each: Mapping[str, Any], style: str) -> None:
    if each["diff"]:
        state = "changed"
        if not each["old"]:
            state = "new"
        elif not each["new"]:
            state = "gone"
        say(console, Text(f"code  {printable(each['name'])} {state}", style=style))
        for line in each["diff"].splitlines():
            say(console, Text(f"  {printable(line)}", style=_COLORS.get(line[:1], style)))
        return
    name = each["name"]
    if (each["part"], name) == ("environment", "code"):
        name = "drivetrain's own code"
    values = f"{shortened(str(each['old']), _WIDE)} -> {shortened(str(each['new']), _WIDE)}"
    say(console, Text(printable(f"{each['part']}  {name}: {values}"), style=style))
