"""What test processes execute as the stages of a pipeline."""

import json

import torch
from torch import nn

from ranks import end, joined, leave

MICROS, SIZE = 4, 8


def inputs(batch):
    return batch[0]


def loss_from(output, batch_size):
    def sum_over_global_count(prediction, target):
        return (prediction - target).square().sum() / batch_size

    return sum_over_global_count


def stage(job, place, listen_fd):
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import Schedule1F1B

    group = joined(place, listen_fd)
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)]
    batch = torch.randn(MICROS * SIZE, 6), torch.randn(MICROS * SIZE, 2)
    own = stages[group.rank]
    pipe = PipelineStage(own, group.rank, 2, torch.device("cpu"), group=group.main)
    # Gradients of micro-batches add up: the divisor is the global count, not a mean over micro-batches.
    schedule = Schedule1F1B(pipe, MICROS, loss_fn=loss_from(None, MICROS * SIZE), scale_grads=False)
    if group.rank == 0:
        schedule.step(inputs(batch))
    else:
        schedule.step(target=batch[1], losses=(losses := []))
        assert len(losses) == MICROS
    gradients = [p.grad.clone() for p in own.parameters()]
    whole = nn.Sequential(*stages)
    whole.zero_grad()
    loss_from(None, MICROS * SIZE)(whole(batch[0]), batch[1]).backward()
    difference = max(float((a - p.grad).abs().max()) for a, p in zip(gradients, own.parameters(), strict=True))
    worst = max(group.gather_json(difference))
    group.close()
    return leave(job, place, end(0, json.dumps({"difference": worst})))
