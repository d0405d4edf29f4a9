"""Text from a decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drivetrain.loop.sampling import Sampling


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, context: int, how: Sampling, end: int | None = None) -> Tensor:
    """Go on from `prompt` (int64 [1, length], one token or more): int64 [1, length + tokens], the prompt included.

    The model sees the last `context` tokens. After a token `end` nothing is drawn. Draws come from torch's default
    generator.
    """
    tokens = prompt
    for _ in range(how.tokens):
        logits = model(tokens[:, -context:])[:, -1].float()
        if how.temperature == 0:
            following = logits.argmax(dim=-1, keepdim=True)
        else:
            following = torch.multinomial(likeliest(logits / how.temperature, how).softmax(dim=-1), 1)
        tokens = torch.cat((tokens, following), dim=1)
        if end is not None and int(following) == end:
            break
    return tokens


def likeliest(logits: Tensor, how: Sampling) -> Tensor:
    """Logits [1, vocabulary], minus infinity where a token is out of the question."""
    if how.top_k is not None and how.top_k < logits.shape[-1]:
        best = logits.topk(how.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, best.indices, best.values)
    if how.top_p is not None:
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        shares = ordered.softmax(dim=-1)
        # What the likelier ones have together: the likeliest one has 0 before it, and always stays.
        before = shares.cumsum(dim=-1) - shares
        kept = ordered.masked_fill(before >= how.top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, places, kept)
    return logits
