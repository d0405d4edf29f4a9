"""What a whole run tells of its FLOPs, and what follows from it."""

import torch
from torch import nn

import drivetrain
from drivetrain.ledger.derive import lineage, throughput
from drivetrain.ledger.ledger import read
from drivetrain.plan.flops import flops_per_sample
from drivetrain.runtime.device import name
from drivetrain.tasks.language_model.recipe import Llama


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(3), torch.tensor(1.0)


class Plain(drivetrain.Task):
    def networks(self):
        return {"model": nn.Linear(3, 1)}

    def loss(self, nets, batch):
        return (nets["model"](batch[0])[:, 0] - batch[1]).square().mean()


def begun(run):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == "attempt"]


def test_a_run_tells_its_flops_and_its_rates_follow_also_after_a_stop(tiny, tmp_path):
    tiny["device"] = "cpu"
    run = tmp_path / "run"
    for _ in range(2):
        drivetrain.train(tiny, ["stop.at=[5]"], run=run, progress=False)
    assert len(begun(run)) == 2
    each = flops_per_sample(Llama(width=16, depth=1, heads=2, context=16).shape)
    for record in begun(run):
        assert record["flops"] == {"per_sample": each, "peak": None}
        assert (record["tokens_per_sample"], record["device"]) == (16, "cpu")
    rates = throughput(lineage(read(run / "ledger.jsonl")))
    assert (rates.samples, rates.tokens, rates.flops) == (12 * 8, 12 * 8 * 16, 12 * 8 * each)
    assert rates.flops_per_second > 0
    assert rates.mfu is None


def test_a_task_that_does_not_know_its_flops_has_rates(tmp_path):
    recipe = {
        "name": "points",
        "device": "cpu",
        "task": {"kind": f"{__name__}:Plain"},
        "data": {"train": {"sources": [{"kind": f"{__name__}:Points"}]}},
        "batch": {"size": 4},
        "budget": {"steps": 2},
    }
    run = drivetrain.train(recipe, run=tmp_path / "run", progress=False).run
    assert begun(run)[0]["flops"] == {"per_sample": None, "peak": None}
    rates = throughput(read(run / "ledger.jsonl"))
    assert (rates.samples, rates.tokens, rates.flops) == (8, 0, None)


def test_the_name_of_the_cpu_is_its_type():
    assert name(torch.device("cpu")) == "cpu"
