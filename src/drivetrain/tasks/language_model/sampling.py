"""Text from a decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, count: int, context: int, temperature: float) -> Tensor:
    """Go on from `prompt` (int64 [1, length]) by `count` tokens: int64 [1, length + count], the prompt included.

    Temperature 0 takes the likeliest token. Draws come from torch's default generator, which evaluation has seeded.
    """
    tokens = prompt
    for _ in range(count):
        logits = model(tokens[:, -context:])[:, -1].float()
        if temperature == 0:
            following = logits.argmax(dim=-1, keepdim=True)
        else:
            following = torch.multinomial((logits / temperature).softmax(dim=-1), 1)
        tokens = torch.cat((tokens, following), dim=1)
    return tokens
