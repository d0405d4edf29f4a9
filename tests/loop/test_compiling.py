"""The time of compiling is a use of its own in the ledger and the report, and no goodput."""

import textwrap

import pytest

import drivetrain
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import ExitRecord, StepRecord
from drivetrain.ledger.run_summary import summarize

SLOW = 0.3  # seconds that the compiler of these tests takes at least

CODE = f"""
    import time
    import torch
    from torch import nn
    import drivetrain

    def backend(graph, inputs):
        time.sleep({SLOW})
        return graph.forward

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)
        def forward(self, x):
            return self.inner(x)

    class Rows:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return torch.full((3,), index / 40)

    class Fit(drivetrain.Task):
        def __init__(self, compiled: bool = False):
            self.compiled = compiled
        def networks(self):
            network = Network()
            if self.compiled:
                network.compile(backend=backend)
            return {{"model": network}}
        def loss(self, nets, batch):
            return nets["model"](batch).square().mean()
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "compiled_of_this_test.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "r.yaml").write_text(
        "{name: compiled, task: {kind: 'compiled_of_this_test:Fit'}, lanes: 4, batch: {size: 8}, budget: {steps: 5},"
        " data: {train: {sources: [{name: rows, kind: 'compiled_of_this_test:Rows'}]}}, launch: {threads: 1},"
        " telemetry: {every: {steps: 5}}}"
    )

    def run(*overrides):
        made = drivetrain.train(tmp_path / "r.yaml", overrides, run=tmp_path / "run", progress=False)
        return list(read(made.run / "ledger.jsonl"))

    return run


def test_compiling_is_no_time_of_its_step_and_has_a_row_of_its_own(train):
    records = train("task.compiled=true")
    steps = [record for record in records if isinstance(record, StepRecord)]
    (end,) = [record for record in records if isinstance(record, ExitRecord)]
    told = summarize(records)
    compiled = steps[0].compile or 0.0
    assert compiled > SLOW
    assert [record.compile for record in steps[1:]] == [None] * 4
    assert end.seconds["compile"] == pytest.approx(compiled, abs=1e-6)
    assert told.seconds["compile"] == pytest.approx(compiled, abs=1e-6)
    assert told.seconds["step"] == pytest.approx(sum(record.seconds for record in steps))
    assert end.seconds["step"] < end.seconds["compile"]
    (telemetry,) = [record for record in records if record.kind == "telemetry"]
    assert telemetry.phases["compile"] > SLOW


def test_a_run_that_compiles_nothing_tells_of_no_compiling(train):
    records = train()
    assert not any(getattr(record, "compile", None) for record in records)
    (end,) = [record for record in records if isinstance(record, ExitRecord)]
    assert "compile" not in end.seconds
