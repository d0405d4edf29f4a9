"""A variational autoencoder on drawn digits: two named losses, and pictures to look at."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from drivetrain import Losses, Task


class Autoencoder(nn.Module):
    """Digits [batch, 784] from 0 to 1 -> the digits again, and mean and log variance [batch, latent] of their codes."""

    def __init__(self, width: int, latent: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 784), nn.Sigmoid())

    def forward(self, digits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.encoder(digits)
        mean, log_variance = self.mean(seen), self.log_variance(seen)
        code = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(code), mean, log_variance


class VAE(Task):
    shown = 8

    def __init__(self, width: int = 400, latent: int = 20):
        self.width, self.latent = width, latent

    def networks(self):
        return {"model": Autoencoder(self.width, self.latent)}

    def loss(self, nets, batch):
        digits = batch.flatten(1) / 255
        again, mean, log_variance = nets["model"](digits)
        return Losses(  # sums over the batch; what is minimized, and what validation says, is their mean over samples
            reconstruction=(binary_cross_entropy(again, digits, reduction="sum"), "samples"),
            divergence=((mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2, "samples"),
        )

    def show(self, nets, batch, gallery):
        model: Any = nets["model"]
        digits = batch.flatten(1) / 255
        made = model.decoder(torch.randn(len(batch), self.latent, device=batch.device))
        rows = [digits, model(digits)[0], made]  # digits, what becomes of them, made-up ones
        gallery.picture("digits", torch.stack(rows).unflatten(2, (28, 28)).transpose(1, 2).reshape(3 * 28, -1))
