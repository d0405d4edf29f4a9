"""Text from a decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.loop.sampling import Sampling
from drivetrain.runtime.compiling import eager
from drivetrain.tasks.language_model.llama import Llama, Past


@torch.no_grad()
def generate(model: Llama, prompt: Tensor, how: Sampling, end: int | None = None) -> Tensor:
    """Go on from `prompt` (int64 [1, length], one token or more): int64 [1, length + tokens], the prompt included.

    The model sees as many of the last tokens as its context has. After a token `end` nothing is drawn. Draws come from
    torch's default generator.
    """
    tokens, past = prompt, Past(model.settings.depth)
    for _ in range(how.tokens):
        with eager():  # each length would be compiled for itself
            logits = _following(model, tokens, past).float()
        if how.temperature == 0:
            following = logits.argmax(dim=-1, keepdim=True)
        else:
            following = torch.multinomial(likeliest(logits / how.temperature, how).softmax(dim=-1), 1)
        tokens = torch.cat((tokens, following), dim=1)
        if end is not None and int(following) == end:
            break
    return tokens


def _following(model: Llama, tokens: Tensor, past: Past) -> Tensor:
    """Logits [1, vocabulary] of the next token. The past holds all tokens but the new ones, or nothing."""
    context = model.settings.context
    if model.laid_out.tensor > 1:
        return _following_of_parts(model, tokens[:, -context:])
    if model.laid_out.pipeline > 1:  # each stage would have a past of its own
        return model(tokens[:, -context:])[:, -1]
    if tokens.shape[1] <= context:
        return model(tokens[:, past.length :], past=past)[:, -1]
    # Every token is at another place now than it was, so nothing of the past can be used again.
    return model(tokens[:, -context:])[:, -1]


def _following_of_parts(model: Llama, tokens: Tensor) -> Tensor:
    """The same where layers are split: of all tokens, filled up to as many positions as are shared out evenly. Those
    after the last token do not change what is before them."""
    last = tokens.shape[1] - 1
    filled = F.pad(tokens, (0, model.settings.context - tokens.shape[1]))
    logits = model(filled)[:, last]
    return logits.full_tensor()  # of one position: only here are logits ever whole


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
