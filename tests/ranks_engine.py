"""What test processes execute to look into the engine's reduction."""

from __future__ import annotations

import hashlib
import json

from ranks import end, joined, leave


def reduce(job, place, descriptors):
    """Four backward passes on the same data: the same bits each time, and the sum over ranks."""
    import torch

    from drivetrain.engine.losses import Losses
    from drivetrain.engine.reduce import Reducer
    from drivetrain.engine.step_result import Sums

    group = joined(place, descriptors)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(97, 97) for _ in range(6)])
    unused = torch.nn.Parameter(torch.ones(5))
    parameters = [*model.parameters(), unused]
    reducer = Reducer(parameters, group.main, limit=50_000)
    batches = [torch.randn(16, 97, generator=torch.Generator().manual_seed(rank)) for rank in range(group.world)]
    digests = []
    for _ in range(4):
        reducer.reset()
        model(batches[group.rank][:8]).square().sum().backward()  # a micro-batch before the last: nothing travels
        sums = Sums(torch.device("cpu"))
        sums.add(Losses(rank=(torch.tensor(float(group.rank)),), one=(torch.tensor(1.0),)))
        reducer.arm(sums)
        model(batches[group.rank][8:]).square().sum().backward()
        reducer.finish(sums)
        digests.append(hashlib.sha256(b"".join(p.grad.numpy().tobytes() for p in parameters)).hexdigest())
    summed = [p.grad.clone() for p in model.parameters()]
    alone = torch.nn.Sequential(*[torch.nn.Linear(97, 97) for _ in range(6)])
    alone.load_state_dict(model.state_dict())
    for batch in batches:
        alone(batch).square().sum().backward()
    difference = max(
        float((a - p.grad).abs().max() / (1 + p.grad.abs().max()))
        for a, p in zip(summed, alone.parameters(), strict=True)
    )
    said = {
        "digests": digests,
        "buckets": len(reducer.buckets),
        "largest_difference": difference,
        "scalars": sums.values[:2],
        "unused": float(unused.grad.abs().max()),
    }
    group.close()
    return leave(job, place, end(0, json.dumps(said)))


def tree(job, place, descriptors):
    """Steps of a lane tree on many ranks, beside the sums that plain additions come to."""
    from drivetrain.engine import exact
    from trees import Lanes

    lanes, micros, exact._AT_ONCE = job["overrides"]
    group = joined(place, descriptors)
    task = Lanes(lanes, micros)
    reduction = exact.LaneTree(task.parameters, group, lanes, limit=3000)
    own = lanes // group.world
    lanes_here = range(group.rank * own, (group.rank + 1) * own)
    found = [task.step(reduction, lanes_here, number) for number in range(3)]
    bits = b"".join(p.grad.contiguous().numpy().tobytes() for p in task.parameters)
    said = {
        "equal": all(found),
        "buckets": len(reduction.buckets),
        "copies": max(len(counter._free) + len(counter._held) for counter in reduction._counters.values()),
        "bits": hashlib.sha256(bits).hexdigest(),
    }
    group.close()
    return leave(job, place, end(0, json.dumps(said)))
