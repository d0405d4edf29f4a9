from pathlib import Path

import torch
from torch.nn.functional import softplus

import drivetrain
from drivetrain.checkpoint.commit import load
from drivetrain.ledger.ledger import read

HERE = Path(__file__).parent
RECIPE = """
name: gan
task: {kind: "gan:Gan"}
data: {train: {sources: [{kind: "gan:Ring"}], shuffle: false}}
lanes: 4
batch: {size: 32, micro: 8}
budget: {steps: 10}
optimizer: {generator: {kind: adamw, lr: 2.0e-3}, discriminator: {kind: sgd, lr: 1.0e-2}}
launch: {threads: 1}
"""


def recipe(tmp_path):
    (tmp_path / "gan.yaml").write_text(RECIPE)
    (tmp_path / "gan.py").write_text((HERE / "gan.py").read_text())
    return tmp_path / "gan.yaml"


def state(run):
    return load(max((run / "checkpoints").glob("step-*")))[1]


def test_two_to_one_updates_are_the_schedule_by_hand(tmp_path):
    run = drivetrain.train(recipe(tmp_path), run=tmp_path / "run", progress=False).run
    kept = state(run)
    assert kept.values["moves"] == {"discriminator": 10, "generator": 5}
    steps = [r for r in read(run / "ledger.jsonl") if r["kind"] == "step"]
    assert set(steps[0]["losses"]) == {"discriminator.loss"}
    assert set(steps[1]["losses"]) == {"discriminator.loss", "generator.loss"}

    from drivetrain.data.dataset import MapSource
    from drivetrain.run.build import build_networks, build_task
    from drivetrain.spec.load import load as load_recipe

    loaded = load_recipe(recipe(tmp_path)).recipe
    nets = build_networks(build_task(loaded), loaded, torch.device("cpu"))
    g, d = nets["generator"], nets["discriminator"]
    move_g = torch.optim.AdamW(
        [
            {"params": [p for p in g.parameters() if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in g.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=2e-3,
        fused=True,
    )
    move_d = torch.optim.SGD(d.parameters(), lr=1e-2, fused=True)
    source = MapSource(loaded.data.train.sources[0], loaded.seed)
    import numpy as np

    for step in range(1, 11):
        at = np.arange((step - 1) * 32, step * 32)
        samples = source.read(at % 512, at)
        real, latent = (torch.stack([s[i] for s in samples]) for i in (0, 1))
        move_d.zero_grad()
        (softplus(-d(real)) + softplus(d(g(latent).detach()))).mean().backward()
        move_d.step()
        if step % 2 == 0:
            move_g.zero_grad()
            loss = softplus(-d(g(latent))).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(g.parameters(), 1.0)
            move_g.step()
    for name, net in nets.items():
        for parameter, tensor in net.named_parameters():
            assert torch.allclose(kept.tensors[f"networks/{name}/{parameter}"], tensor, atol=1e-6)


def test_both_networks_are_one_state_across_a_stop_and_processes(tmp_path):
    straight = drivetrain.train(recipe(tmp_path), run=tmp_path / "a", progress=False).run
    for steps in (4, 10):
        run = drivetrain.train(
            recipe(tmp_path), [f"budget.steps={steps}"], run=tmp_path / "b", progress=False, override=["budget"]
        ).run
    one, other = state(straight), state(run)
    assert one.values == other.values
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    many = drivetrain.train(recipe(tmp_path), ["launch.processes=2"], run=tmp_path / "c", progress=False).run
    assert all(torch.allclose(one.tensors[name], state(many).tensors[name], atol=1e-6) for name in one.tensors)
