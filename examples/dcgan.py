"""A DCGAN on drawn digits: two networks that move in turn, metrics of both, and a callback that watches."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from drivetrain import Mean, Task


class Generator(nn.Sequential):
    """Noise [batch, latent, 1, 1] -> pictures [batch, 1, 64, 64] from -1 to 1."""

    def __init__(self, latent: int, width: int):
        sizes, layers = [latent, 8 * width, 4 * width, 2 * width, width], []
        for place, size in enumerate(sizes[1:]):
            layers += [nn.ConvTranspose2d(sizes[place], size, 4, *((2, 1) if place else (1, 0)), bias=False)]
            layers += [nn.BatchNorm2d(size, track_running_stats=False), nn.ReLU()]
        super().__init__(*layers, nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False), nn.Tanh())
        self.apply(initialize)


class Discriminator(nn.Sequential):
    """Pictures [batch, 1, 64, 64] -> how likely each is real [batch]."""

    def __init__(self, width: int):
        layers = [nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for size in (width, 2 * width, 4 * width):
            layers += [
                nn.Conv2d(size, 2 * size, 4, 2, 1, bias=False),
                nn.BatchNorm2d(2 * size, track_running_stats=False),
                nn.LeakyReLU(0.2),
            ]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4, bias=False), nn.Sigmoid(), nn.Flatten(0))
        self.apply(initialize)


def initialize(layer: nn.Module) -> None:
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(layer.weight, std=0.02)
    elif isinstance(layer, nn.BatchNorm2d):
        nn.init.normal_(layer.weight, mean=1.0, std=0.02)


def cost(judged: Tensor, real: bool) -> Tensor:
    return binary_cross_entropy(judged, torch.full_like(judged, float(real)))


class DCGAN(Task):
    shown = 64

    def __init__(self, latent: int = 100, width: int = 64):
        self.latent, self.width = latent, width

    def networks(self):
        return {"generator": Generator(self.latent, self.width), "discriminator": Discriminator(self.width)}

    def collate(self, samples):
        return super().collate(samples) / 127.5 - 1

    def noise(self, batch):
        return torch.randn(len(batch), self.latent, 1, 1, device=batch.device)

    def update(self, step):
        step.minimize("discriminator", partial(self.judge, step))
        step.minimize("generator", partial(self.deceive, step))

    def judge(self, step, nets, batch):
        noise = step.cache["noise"] = self.noise(batch)  # the generator moves on the same noise
        with torch.no_grad():
            fake = nets["generator"](noise)
        return cost(nets["discriminator"](batch), real=True) + cost(nets["discriminator"](fake), real=False)

    def deceive(self, step, nets, batch):
        return cost(nets["discriminator"](nets["generator"](step.cache["noise"])), real=True)

    def metrics(self):
        return {"real_taken_for_real": Mean(), "fake_taken_for_real": Mean()}

    def evaluate(self, nets, batch, metrics):
        fake = nets["generator"](self.noise(batch))
        metrics["real_taken_for_real"].add(float(nets["discriminator"](batch).sum()), len(batch))
        metrics["fake_taken_for_real"].add(float(nets["discriminator"](fake).sum()), len(batch))

    def show(self, nets, batch, gallery):
        fixed = torch.Generator().manual_seed(0)  # the same noise each time, to see how pictures change
        noise = torch.randn(64, self.latent, 1, 1, generator=fixed).to(batch.device)
        rows = nets["generator"](noise).reshape(8, 8, 64, 64).transpose(1, 2)
        gallery.picture("fakes", (rows.reshape(8 * 64, 8 * 64) + 1) / 2)


class Balance:
    """A callback: says once when the discriminator has won, after which the generator learns little."""

    def __init__(self, below: float = 0.01, steps: int = 50):
        self.below, self.steps, self.won = below, steps, 0

    def on_step(self, record):
        self.won = self.won + 1 if record.losses["discriminator.loss"] < self.below else 0
        if self.won == self.steps:
            print(f"step {record.step}: the discriminator's loss was below {self.below} for {self.steps} steps")
