"""User code that works, with one of each kind that a recipe may name. Tests seed mistakes into it, one at a time, as
edits of this text: so it has all that it needs here, and shares nothing with other modules of a user's own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import drivetrain


class Points(torch.utils.data.Dataset):
    def __init__(self, count: int = 32):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((2,), index / self.count), index % 2


def flowing(start, count: int = 1 << 30):
    for index in range(start, count):
        yield torch.full((2,), index % 7 / 7), index % 2


class Flow(torch.utils.data.IterableDataset):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        while True:
            self.at += 1
            yield torch.full((2,), self.at % 7 / 7), self.at % 2

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Fit(drivetrain.Task):
    def __init__(self, width: int = 4):
        self.width = width

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, 2))}

    def collate(self, samples):
        return torch.stack([point for point, _ in samples]), torch.tensor([side for _, side in samples])

    def loss(self, nets, batch):
        points, sides = batch
        return cross_entropy(nets["model"](points), sides)

    def update(self, step):
        step.minimize("model", self.loss)

    def metrics(self):
        return super().metrics() | {"right": drivetrain.Mean()}

    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)
        points, sides = batch
        said = nets["model"](points).argmax(1)
        metrics["right"].add(float((said == sides).sum()), len(sides))
        return said, sides

    def show(self, nets, batch, gallery):
        gallery.text("weights", str(next(nets["model"].parameters())))

    def predict(self, nets, batch):
        return [{"side": side} for side in nets["model"](batch[0]).argmax(1).tolist()]

    def generate(self, nets, prompt, how):
        return {"text": prompt}


class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.1, weight_decay: float = 0.0, keep: float = 0.9):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "keep": keep})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["mean"] = state.get("mean", 0) * group["keep"] + parameter.grad
                parameter.sub_(state["mean"] * group["lr"])


def falling(samples: int, total: int, least: float = 0.1) -> float:
    return max(least, 1 - samples / total)


class Halving:
    def __init__(self, patience: int = 1):
        self.patience = patience

    def factor(self, samples: int, total: int, scores: dict) -> float:
        return 0.5 ** len(scores["points/loss"])


class Hearing:
    def __init__(self, every: int = 1):
        self.every = every

    def on_step(self, record):
        self.last = record.step

    def on_evaluation(self, record, networks):
        self.seen = sorted(networks)


class Sending:
    def __init__(self, path: str = "rows"):
        self.path = path

    def send(self, rows):
        with open(self.path, "a") as file:
            file.writelines(f"{row.kind}\n" for row in rows)


class Share:
    def __init__(self, scale: float = 1.0):
        self.scale, self.right, self.count = scale, 0, 0

    def update(self, said, sides):
        self.right += int((said == sides).sum())
        self.count += len(sides)

    def state(self):
        return [self.right, self.count]

    def merge(self, state):
        self.right += state[0]
        self.count += state[1]

    def value(self):
        return self.scale * self.right / self.count
