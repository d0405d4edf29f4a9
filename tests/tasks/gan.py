"""A user's GAN: two networks against each other, the discriminator twice as often. `update` is all that a GAN needs."""

import torch
from torch import nn
from torch.nn.functional import softplus

import drivetrain


class Ring:
    """Points on a circle, with a latent vector each."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        angle = torch.tensor(index * 6.2831853 / 512)
        return torch.stack([angle.cos(), angle.sin()]), torch.randn(4)


class Gan(drivetrain.Task):
    """The non-saturating GAN (Goodfellow et al. 2014, arXiv 1406.2661)."""

    def networks(self):
        def net(inputs, outputs):
            return nn.Sequential(nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))

        return {"generator": net(4, 2), "discriminator": net(2, 1)}

    def update(self, step):
        def discriminate(nets, batch):
            real, latent = batch
            if step.index % 2 == 0:
                step.cache["fake"] = nets["generator"](latent).detach()  # the generator moves next, on other samples
            fake = nets["generator"](latent).detach()
            return (softplus(-nets["discriminator"](real)) + softplus(nets["discriminator"](fake))).mean()

        def generate(nets, batch):
            _, latent = batch
            assert torch.equal(step.cache["fake"], nets["generator"](latent).detach())
            return softplus(-nets["discriminator"](nets["generator"](latent))).mean()

        step.minimize("discriminator", discriminate)
        if step.index % 2 == 0:
            step.minimize("generator", generate)

    def loss(self, nets, batch):
        real, _ = batch
        return nets["discriminator"](real).mean()
