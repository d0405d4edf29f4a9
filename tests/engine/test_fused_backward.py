"""A task whose optimizer moves during backward, each gradient freed as soon as it is used.

It works inside `minimize` unchanged (such parameters simply have no gradient left to vote on, clip or
step), but it moves before the finite vote and once per micro-batch. So it must be declared: one micro-batch a step, no
clipping by this step's norm, and no skip policy.
"""

import textwrap

import torch

import drivetrain
from drivetrain.checkpoint.commit import load

TASK = """
    import torch
    from torch import nn
    import drivetrain

    class Line:
        def __len__(self):
            return 64
        def __getitem__(self, i):
            x = torch.tensor([i / 64, 1 - i / 64])
            return x, x.sum()

    class Fused(drivetrain.Task):
        def __init__(self, fused: bool = True):
            self.fused = fused
        def networks(self):
            model = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 1))
            if self.fused:
                for parameter in model[0].parameters():
                    own = torch.optim.SGD([parameter], lr=0.1)
                    def move(p, own=own):
                        own.step()
                        p.grad = None
                    parameter.register_post_accumulate_grad_hook(move)
            return {"model": model}
        def loss(self, nets, batch):
            x, y = batch
            return (nets["model"](x)[:, 0] - y).square().mean()
"""


def test_gradients_used_in_backward_move_like_those_used_after_it(tmp_path):
    (tmp_path / "fused.py").write_text(textwrap.dedent(TASK))
    recipe = {
        "name": "fused",
        "task": {"kind": "fused:Fused"},
        "data": {"train": {"sources": [{"kind": "fused:Line"}]}},
        "batch": {"size": 16},
        "budget": {"steps": 5},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "launch": {"threads": 1},
    }
    path = tmp_path / "fused.json"
    path.write_text(__import__("json").dumps(recipe))
    states = []
    for fused in ("true", "false"):
        run = drivetrain.train(path, [f"task.fused={fused}"], run=tmp_path / fused, progress=False).run
        states.append(load(max((run / "checkpoints").glob("step-*")))[1].tensors)
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-7) for name in states[1])
