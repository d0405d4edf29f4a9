"""A worker that trains as ever, with a meter around its steps."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.worker import main


def metered(job, place, descriptors):
    """Train, and leave what was alive at most in each step, in bytes."""
    from drivetrain.loop.step_runner import StepRunner
    from drivetrain.plan.meter import Meter

    meter, run, peaks = Meter(), StepRunner.run, []

    def seen(self, batch, counts):
        engine = self._engine
        with meter:
            for network in engine.networks.values():
                meter.name("weights", [*network.parameters(), *network.buffers()])
            begin = meter.mark()
            run(self, batch, counts)
            peaks.append(sum(meter.timeline(begin, meter.mark()).peak))

    StepRunner.run = seen
    try:
        code = main(job, place, descriptors)
    finally:
        StepRunner.run = run
    (Path(job["folder"]) / f"peaks-{place['rank']}.json").write_text(json.dumps(peaks))
    return code
