"""Whole runs with the meta device in an accelerator's place: which operations mix devices, where the host waits."""

import json
import os

import pytest
import torch

import drivetrain
from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Failure
from glues import folders
from glues import recipe as glue
from stand_in_device import MixedDevicesError, StandIn, stand_in_device

pytestmark = [pytest.mark.xdist_group("devices"), pytest.mark.timeout(300)]
VOTE = "engine/vote.py:vote_on_device"
WAITS = {
    VOTE: "the declared wait: an optimizer without a kernel that skips by itself is told by the host",
    "optim/network_optimizer.py:_move": "torch's Adafactor reads two norms of each tensor on the host",
    "optim/refresh.py:renew": "a basis is made of a finite gradient alone, once in `gap` steps",
    "checkpoint/snapshot.py:_on_host": "checksums of gradients, in the steps that guard.recompute makes twice",
    "checkpoint/snapshot.py:_sum": "and the last bytes of tensors that are no multiple of eight",
    "engine/statistics.py:_square": "in the steps that statistics measure",
    "tasks/classification/task.py:_logits": "transformers look whether a mask hides anything",
    "tasks/language_model/task.py:evaluate": "scores of training samples, in the steps that are scored",
    "tasks/speech/spectra.py:istft": "torch's istft looks whether its windows leave a gap",
}
"""Every place in a step at which the host may wait for the device, and why."""
GALORE = "optimizer={kind: galore, lr: 1e-3, rank: 4, gap: 2, "
DECODERS = {
    "adamw": (["precision=fp16", "average={decay: 0.9}", "activations=recompute", "telemetry.every={steps: 1}"], ()),
    "guard": (["guard={nonfinite: skip, spike: {action: rollback}, skip: [2]}", "task.logits_chunk=4"], ()),
    "replicas": (["guard={nonfinite: rollback, replicas: {steps: 2}}", "exact=true"], ()),
    "bf16 weights": (["precision=bf16", "parameters={dtype: bf16}", "activations=selective"], ()),
    "rounded": (["precision=bf16", "parameters={dtype: bf16, rounding: stochastic}"], (VOTE,)),
    "sgd": (["optimizer={kind: sgd, momentum: 0.9, clip: {value: 0.1}}"], ()),
    "adafactor": (["optimizer={kind: adafactor}"], (VOTE, "optim/network_optimizer.py:_move")),
    "muon": (["optimizer={kind: muon}"], (VOTE,)),
    "galore": ([GALORE + "base: {kind: adamw8bit}}"], (VOTE, "optim/refresh.py:renew")),
    "galore by layer": ([GALORE + "layerwise: true}"], ("optim/refresh.py:renew",)),
    "twice": (
        ["guard={recompute: {steps: 1}}"],
        ("checkpoint/snapshot.py:_on_host", "checkpoint/snapshot.py:_sum"),
    ),
    "statistics": (["statistics={every: {steps: 1}, gradients: true}"], ("engine/statistics.py:_square",)),
    "scored": (["evaluate.training={every: {steps: 1}}"], ("tasks/language_model/task.py:evaluate",)),
    "experts": (["task.model.experts={count: 4, hidden: 8, shared: 1}"], ()),
    "experts with room": (["task.model.experts={count: 4, hidden: 8, capacity: 1.25, balance: {loss: 0.01}}"], ()),
}


def short(recipe, steps=3):
    """Without a warm-up, and with an evaluation and a commit between steps."""
    changed = {"budget": {"steps": steps}, "schedule": {"kind": "constant"}, "checkpoint": {"every": {"steps": 2}}}
    return recipe | changed | {"evaluate": {"every": {"steps": 2}, "batch": 8}, "launch": {"threads": 1}}


def waits_of(recipe, run, *overrides):
    """Where steps of a run wait."""
    with stand_in_device() as seen:
        drivetrain.train(recipe, overrides, run=run, progress=False)
    assert seen.operations > 100
    return set(seen.waits)


@pytest.mark.parametrize("name", DECODERS if "DRILL" in os.environ else ["adamw", "adafactor"])
def test_steps_of_a_decoder_mix_no_devices_and_wait_where_it_is_said(name, tiny, tmp_path):
    overrides, waits = DECODERS[name]
    assert waits_of(short(tiny), tmp_path / "run", *overrides) == set(waits)
    assert set(waits) <= WAITS.keys()


def test_a_run_that_goes_on_from_a_commit_does_neither(tiny, tmp_path):
    for stop in ("[2]", "[]"):
        assert waits_of(short(tiny), tmp_path / "run", f"stop.at={stop}", "average={decay: 0.9}") == set()


def test_documents_that_are_kept_apart_do_neither(tiny, tmp_path):
    lines = [json.dumps({"text": "some words " * number}) for number in range(1, 40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    where = [str(tmp_path / "texts.jsonl"), "--to", str(tmp_path / "d"), "--tokenizer", "bytes"]
    assert command(["data", "prepare", *where]) == 0
    tiny["data"] = {"train": {"sources": [{"kind": "documents", "path": str(tmp_path / "d")}]}}
    assert waits_of(short(tiny), tmp_path / "run", "task.documents={attention: within, loss: within}") == set()


def test_steps_of_a_classifier_wait_for_transformers_alone(tmp_path):
    waits = waits_of(short(glue(folders(tmp_path))), tmp_path / "run", "checkpoint={}")
    assert waits == {"tasks/classification/task.py:_logits"}


@pytest.mark.parametrize("name", ["denoise-demo", "vocoder-demo"] if "DRILL" in os.environ else ["denoise-demo"])
def test_steps_of_a_speech_recipe_wait_for_torchs_istft_alone(name, tmp_path):
    overrides = ["budget={steps: 2}", "schedule={kind: constant}", "launch.threads=1", "checkpoint={}"]
    if name == "vocoder-demo":
        overrides.append("networks.discriminator.start=2")
    assert waits_of(name, tmp_path / "run", *overrides) == {"tasks/speech/spectra.py:istft"}


class Mixing(drivetrain.Task):
    """Has a tensor of the host's where the device's belongs."""

    def networks(self):
        return {"model": torch.nn.Linear(3, 1)}

    def loss(self, nets, batch):
        return (nets["model"](batch) - torch.ones(len(batch), 1)).square().mean()


class Asking(Mixing):
    """Looks at a number in each micro-batch."""

    def loss(self, nets, batch):
        made = nets["model"](batch).square().mean()
        return made if made > 0 else made * 2


class Rows:
    fingerprint = "rows"

    def __len__(self):
        return 16

    def __getitem__(self, number):
        return torch.ones(3)


def own(task):
    source = {"sources": [{"kind": Rows()}]}
    return {"name": "own", "task": {"kind": task()}, "data": {"train": source}, "batch": {"size": 4}, "lanes": 1}


def test_a_task_that_mixes_devices_is_told_its_line(tmp_path):
    with pytest.raises(Failure) as failed, stand_in_device():
        drivetrain.train(own(Mixing) | {"budget": {"steps": 1}}, run=tmp_path / "run", progress=False)
    assert isinstance(failed.value.__cause__, MixedDevicesError)
    assert "two devices (meta [4, 1], cpu [4, 1])" in str(failed.value.__cause__)
    assert f"{__file__}:" in str(failed.value.__cause__)


def test_a_task_that_looks_at_numbers_is_seen_to_wait(tmp_path):
    assert waits_of(own(Asking) | {"budget": {"steps": 40}}, tmp_path / "run") == {"engine/engine.py:_forward"}


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, host: here @ host,
        lambda here, host: torch.cat([here, host]),
        lambda here, host: torch.nn.functional.embedding(host.long(), here),
        lambda here, host: here[host.long()],
        lambda here, host: torch._foreach_add_([here], [host]),
    ],
    ids=["product", "cat", "embedding", "index", "foreach"],
)
def test_torch_lets_meta_and_host_pass_where_a_device_would_not(mix):
    here, host = torch.ones(2, 2, device="meta"), torch.ones(2, 2)
    with pytest.raises(MixedDevicesError), StandIn():
        mix(here, host)


def test_a_number_of_the_hosts_and_copies_go_with_a_device():
    here = torch.ones(2, 2, device="meta")
    with StandIn() as seen:
        seen.stepping = True
        here * torch.tensor(2.0) + here.copy_(torch.ones(2, 2), non_blocking=True)
        torch.empty(2, 2).copy_(here, non_blocking=True)
        assert seen.waits.total() == 0
        here.nonzero()
        here.cpu()
        assert seen.waits.total() == 2
