"""What a check's own process does: it runs the check, and leaves what came of it in a file."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from accelerator.check import CheckFailedError, Here, NotApplicableError

REDUCED_PROCESSES = 2
"""That stand for devices on a CPU."""


def work(name: str, here: Mapping[str, Any], result: str, checks: str) -> int:
    """Run a check, or look which device there is (`probe`); what it raises is what came of it."""
    verdict, why, figures = "passed", "", {}
    try:
        if name == "probe":
            figures = probe(here["device"])
        else:
            figures = run(name, Here(**(here | {"folder": Path(here["folder"])})), checks)
    except NotApplicableError as told:
        verdict, why = "not applicable", str(told)
    except CheckFailedError as told:
        verdict, why = "failed", str(told)
    except Exception as error:
        traceback.print_exc()
        verdict, why = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    left = Path(f"{result}.part")
    left.write_text(json.dumps({"verdict": verdict, "why": why, "figures": figures}))
    os.replace(left, result)
    return 0


def run(name: str, here: Here, checks: str) -> Mapping[str, Any]:
    """The figures of a check of that module."""
    (check,) = [check for check in import_module(checks).CHECKS if check.name == name]
    return check.run(here)


def probe(asked: str) -> dict[str, Any]:
    """Which device there is. Raises CheckFailedError where it is not the one that is asked for."""
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if asked == "cpu" or (asked == "auto" and there is None):
        return {"kind": "cpu", "name": "cpu", "count": REDUCED_PROCESSES, "memory": 0, "torch": torch.__version__}
    if there is None or asked not in ("auto", there.type):
        raise CheckFailedError(f"--device {asked}, and torch {torch.__version__} finds {there or 'no accelerator'}")
    module = torch.get_device_module(there)
    properties = module.get_device_properties(0) if hasattr(module, "get_device_properties") else None
    return {
        "kind": there.type,
        "name": getattr(properties, "name", there.type),
        "count": torch.accelerator.device_count(),
        "memory": getattr(properties, "total_memory", 0),
        "torch": torch.__version__,
    }
