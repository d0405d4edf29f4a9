"""What test processes execute to look into the engine's reduction."""

from __future__ import annotations

import hashlib
import json

from ranks import end, joined, leave


def reduce(job, place, descriptors):
    """Four backward passes on the same data: the same bits each time, and the sum over ranks."""
    import torch

    from drivetrain.engine.reduce import Reducer

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
        reducer.arm(torch.tensor([float(group.rank), 1.0], dtype=torch.float64))
        model(batches[group.rank][8:]).square().sum().backward()
        scalars = reducer.finish().tolist()
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
        "buckets": len(reducer._buckets),
        "largest_difference": difference,
        "scalars": scalars,
        "unused": float(unused.grad.abs().max()),
    }
    group.close()
    return leave(job, place, end(0, json.dumps(said)))
