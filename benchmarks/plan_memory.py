"""What a plan says of a step's memory beside what a step takes: `python benchmarks/plan_memory.py [RECIPE ...]`.

Each recipe has a process of its own, one thread, and memory whose blocks are mapped singly (glibc's
MALLOC_MMAP_THRESHOLD_), so that freed ones go back to the system: only then is resident memory that of live tensors.
Told are live bytes by the plan's trace, by the same meter around real steps, and by how much the process grew from
before it had networks (VmHWM; needs Linux), after a small model has had the libraries loaded that steps use. KEY=VALUE
after a recipe changes it: `python benchmarks/plan_memory.py quickstart batch.micro=4`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RECIPES = ("quickstart", "quickstart activations=recompute", "moe-demo", "ctr-demo", "denoise-demo", "vocoder-demo")
SINGLY = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_MMAP_MAX_": "10000000", "MALLOC_TRIM_THRESHOLD_": "0"}
_WARM = ("quickstart", "batch={size: 8, micro: 1}", "task.model={width: 16, depth: 1, heads: 2, context: 16}")


def main() -> None:
    if "PLAN_MEMORY" in os.environ:
        print(json.dumps(measured(*sys.argv[1:])))
        return
    asked = [" ".join(sys.argv[1:])] if len(sys.argv) > 1 else RECIPES
    print(f"{'recipe':<34}{'planned':>10}{'live':>10}{'off':>9}{'resident':>10}{'off':>9}   MB")
    for words in asked:
        line = [sys.executable, __file__, *words.split()]
        environment = os.environ | SINGLY | {"PLAN_MEMORY": "1", "OMP_NUM_THREADS": "1"}
        said = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE).stdout
        one = json.loads(said.splitlines()[-1])
        planned, live, resident = (one[name] / 1e6 for name in ("planned", "live", "resident"))
        off = [f"{planned / size - 1:+.2%}" for size in (live, resident)]
        print(f"{words:<34}{planned:>10.2f}{live:>10.2f}{off[0]:>9}{resident:>10.2f}{off[1]:>9}", flush=True)


def measured(recipe: str, *overrides: str) -> dict[str, int]:
    """The bytes of one recipe: planned, of live tensors, and those by which this process grew."""
    import torch

    torch.set_num_threads(1)
    _steps(*_WARM)
    before = _status("VmRSS")
    # From here on the most is counted anew.
    Path("/proc/self/clear_refs").write_text("5")
    live = _steps(recipe, *overrides)
    return {"resident": _status("VmHWM") - before, "live": live, "planned": _planned(recipe, *overrides)}


def _steps(recipe: str, *overrides: str) -> int:
    """Live bytes of real steps."""
    from drivetrain.plan.memory import measured as memory_of
    from drivetrain.run.planning import asked_of, open_plan
    from drivetrain.run.tracing import metered
    from drivetrain.runtime.group import Group
    from drivetrain.spec.load import load
    from drivetrain.spec.mesh import MeshSizes

    opened = open_plan(load(recipe, overrides).recipe, 1, data=False)
    seen = metered(asked_of(opened, MeshSizes()), Group())
    return sum(memory_of(seen.later).peak.peak)


def _planned(recipe: str, *overrides: str) -> int:
    from drivetrain.run.planning import open_plan, predict
    from drivetrain.spec.load import load
    from drivetrain.spec.mesh import MeshSizes

    return predict(open_plan(load(recipe, overrides).recipe, 1, data=False), MeshSizes(), whole=True).peak


def _status(name: str) -> int:
    """Bytes, as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main()
