"""Run a published training script as it is, on the examples' data: `python original.py NAME FOLDER SEED RECIPE`.

FOLDER holds the script. The settings and the data come from our RECIPE (its whole content as JSON), so both train the
same. The script is run unchanged, in a folder of its own: torchvision is stood in for by drawn digits, and the time is
taken after each optimizer step. It prints JSON as its last line: begin and end of steps, parameters, losses, scores.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from os import chdir
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@dataclass
class Stopwatch:
    """The time after each step. What lies between two steps counts unless `pause` was called there: an evaluation, or
    pictures that are written."""

    ends: list[float] = field(default_factory=list)
    pauses: set[int] = field(default_factory=set)

    def tick(self, *_: Any) -> None:
        """A step has ended."""
        self.ends.append(time.time())

    def pause(self) -> None:
        """What comes before the next step's end is not training alone."""
        self.pauses.add(len(self.ends))

    def spans(self, every: int = 1) -> list[tuple[float, float]]:
        """Begin and end of each step that was nothing but a step; `every` ticks are one."""
        ends, pauses = self.ends[every - 1 :: every], {place // every for place in self.pauses}
        return [(ends[i - 1], ends[i]) for i in range(1, len(ends)) if i not in pauses]


WATCH = Stopwatch()


def hooked(pauses: str = "eval") -> None:
    """Have the stopwatch hear of steps and evaluations."""
    register_optimizer_step_post_hook(WATCH.tick)
    if pauses == "eval":
        before = nn.Module.eval

        def evaluating(module: nn.Module) -> nn.Module:
            WATCH.pause()
            return before(module)

        nn.Module.eval = evaluating  # type: ignore[method-assign]


def torchvision(train: dict, validation: dict) -> None:
    """What the scripts use of torchvision: MNIST becomes drawn digits, pictures are not written."""
    from synthetic import digits

    class MNIST(torch.utils.data.Dataset):
        def __init__(self, root: str, train: bool = True, download: bool = False, transform: Any = None):
            self.pictures = digits(**(training if train else validation))
            self.transform = transform

        def __len__(self):
            return len(self.pictures)

        def __getitem__(self, index):
            return self.transform(self.pictures[index, None]), 0

    def compose(steps: list[Callable]) -> Callable:
        def apply(value: Any) -> Any:
            for step in steps:
                value = step(value)
            return value

        return apply

    training = train
    package = ModuleType("torchvision")
    parts = {name: ModuleType(f"torchvision.{name}") for name in ("datasets", "transforms", "utils")}
    parts["datasets"].MNIST = MNIST
    parts["transforms"].Compose = compose
    parts["transforms"].ToTensor = lambda: lambda picture: torch.from_numpy(picture) / 255
    parts["transforms"].Resize = lambda size: lambda picture: picture
    parts["transforms"].Normalize = lambda mean, std: lambda picture: (picture - mean[0]) / std[0]
    parts["utils"].save_image = lambda *_, **__: WATCH.pause()
    sys.modules["torchvision"] = package
    for name, part in parts.items():
        setattr(package, name, part)
        sys.modules[part.__name__] = part


def source(recipe: dict) -> dict:
    """The training source's own settings."""
    return plain(recipe["data"]["train"]["sources"][0])


def plain(settings: dict) -> dict:
    """Settings of a source without those that every source has."""
    return {key: settings[key] for key in settings if key not in ("kind", "name", "weight", "parted")}


def run(script: Path, arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """What a script prints, and its variables."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    out = io.StringIO()
    with redirect_stdout(out):
        left = runpy.run_path(str(script), run_name="__main__")
    return out.getvalue(), left


def numbers(pattern: str, text: str) -> list[float]:
    """The first group of each match."""
    return [float(found) for found in re.findall(pattern, text)]


def char_gpt(folder: Path, seed: int, recipe: dict) -> dict:
    """nanoGPT's train.py, by its own configuration."""
    from char_gpt import VOCABULARY, Characters
    from synthetic import text

    task, train, (validation,) = recipe["task"], source(recipe), recipe["data"]["validation"].values()
    optimizer, steps = recipe["optimizer"], recipe["budget"]["steps"]
    data = Path("data/made")
    data.mkdir(parents=True)
    for name, part in (("train", train), ("val", plain(validation))):
        codes = np.frombuffer(text(part["sentences"], part.get("seed", 0)).encode(), np.uint8)
        codes.astype(np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY}))
    Path("configurator.py").symlink_to(folder / "configurator.py")
    manual_seed = torch.manual_seed
    torch.manual_seed = lambda given: manual_seed(given + seed)  # the script's own is written there
    torch.cuda.amp.GradScaler = torch.amp.GradScaler  # says nothing of being old; it is switched off
    hooked()
    options = {
        "dataset": "made",
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "gradient_accumulation_steps": 1,
        "eval_interval": steps,
        "eval_iters": 1,  # of random windows; below its model is scored on ours
        "log_interval": 10,
        "batch_size": recipe["batch"]["size"],
        "block_size": task["context"],
        "n_layer": task["depth"],
        "n_head": task["heads"],
        "n_embd": task["width"],
        "dropout": task.get("dropout", 0.0),
        "learning_rate": optimizer["lr"],
        "min_lr": optimizer["lr"] * recipe["schedule"]["floor"],
        "beta1": optimizer["betas"][0],
        "beta2": optimizer["betas"][1],
        "weight_decay": optimizer["weight_decay"],
        "grad_clip": optimizer["clip"],
        "warmup_iters": recipe["schedule"]["warmup"]["steps"],
        "lr_decay_iters": steps,
        "max_iters": steps,
    }
    out, left = run(folder / "train.py", [f"--{key}={value}" for key, value in options.items()])
    windows = Characters(**plain(validation))
    model, total = left["model"].eval(), 0.0
    with torch.no_grad():
        for start in range(0, len(windows), 64):
            batch = torch.stack([windows[i] for i in range(start, min(start + 64, len(windows)))])
            total += float(model(batch[:, :-1], batch[:, 1:].contiguous())[1]) * len(batch)
    return told(model, numbers(r"iter \d+: loss ([\d.]+)", out), {"loss": total / len(windows)})


def vae(folder: Path, seed: int, recipe: dict) -> dict:
    """PyTorch's vae/main.py."""
    (validation,) = recipe["data"]["validation"].values()
    torchvision(source(recipe), plain(validation))
    hooked()
    epochs = int(recipe["budget"]["epochs"])
    out, left = run(
        folder / "vae" / "main.py",
        [f"--batch-size={recipe['batch']['size']}", f"--epochs={epochs}", f"--seed={seed}", "--no-accel"],
    )
    scores = {"loss": numbers(r"Test set loss: ([\d.]+)", out)[-1]}
    return told(left["model"], numbers(r"Loss: ([\d.]+)", out), scores)


def dcgan(folder: Path, seed: int, recipe: dict) -> dict:
    """PyTorch's dcgan/main.py."""
    train, task = source(recipe), recipe["task"]
    torchvision(train, {})
    hooked("pictures")
    options = {
        "dataset": "mnist",
        "dataroot": ".",
        "workers": 0,
        "batchSize": recipe["batch"]["size"],
        "nz": task.get("latent", 100),
        "ngf": task["width"],
        "ndf": task["width"],
        "niter": int(recipe["budget"]["epochs"]),
        "lr": recipe["optimizer"]["generator"]["lr"],
        "beta1": recipe["optimizer"]["generator"]["betas"][0],
        "manualSeed": seed,
    }
    out, left = run(folder / "dcgan" / "main.py", [f"--{key}={value}" for key, value in options.items()])
    both = nn.ModuleList([left["netG"], left["netD"]])
    judged, made = numbers(r"Loss_D: ([\d.]+)", out), numbers(r"Loss_G: ([\d.]+)", out)
    return told(both, judged, {}, every=2) | {"generator": made}


def word_lm(folder: Path, seed: int, recipe: dict) -> dict:
    """PyTorch's word_language_model/main.py, on the very columns that ours reads."""
    from word_lm import Streams, vocabulary

    (validation,), (test,) = recipe["data"]["validation"].values(), recipe["data"]["test"].values()
    for name, part in (("train", source(recipe)), ("valid", plain(validation)), ("test", plain(test))):
        streams = Streams(**part)
        whole = len(streams) // streams.streams * streams.context + 1
        words = [vocabulary()[code] for code in streams.columns[:, :whole].flatten().tolist()]
        text = " ".join(words).replace(" <eos> ", "\n")
        Path(f"{name}.txt").write_text(text + ("\n<unk>" if name == "test" else ""))
    clip = nn.utils.clip_grad_norm_

    def clipped(*given: Any) -> Any:  # the last call before the weights move: there is no optimizer
        WATCH.tick()
        return clip(*given)

    hooked()
    nn.utils.clip_grad_norm_ = clipped
    task, optimizer = recipe["task"], recipe["optimizer"]
    options = {
        "data": ".",
        "save": "model.pt",
        "emsize": task["width"],
        "nhid": task["width"],
        "nlayers": task.get("depth", 2),
        "dropout": task.get("dropout", 0.2),
        "lr": optimizer["lr"],
        "clip": optimizer["clip"],
        "epochs": int(recipe["budget"]["epochs"]),
        "batch_size": recipe["batch"]["size"],
        "bptt": source(recipe)["context"],
        "log-interval": 10,
        "seed": seed,
    }
    out, left = run(folder / "word_language_model" / "main.py", [f"--{key}={value}" for key, value in options.items()])
    losses = numbers(r"ms/batch .* loss +([\d.]+)", out)
    numbered = torch.tensor([left["corpus"].dictionary.word2idx[word] for word in vocabulary()])
    columns = numbered[Streams(**plain(validation)).columns].T  # [length, streams], as the script has them
    model, context, totals = left["model"].eval(), source(recipe)["context"], []
    hidden = model.init_hidden(columns.shape[1])
    with torch.no_grad():
        for start in range(0, len(columns) - context, context):  # it scores in other columns than ours
            scores, hidden = model(columns[start : start + context], hidden)
            wanted = columns[start + 1 : start + context + 1].flatten()
            totals.append(float(nn.functional.nll_loss(scores, wanted)))
    return told(model, losses, {"loss": sum(totals) / len(totals)})


def told(model: nn.Module, losses: list[float], scores: dict[str, float], every: int = 1) -> dict:
    """What is compared; `losses` are those that the script prints, of every step or at equal distances."""
    return {
        "steps": len(WATCH.ends) // every,
        "spans": WATCH.spans(every),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "losses": losses,
        "scores": scores,
    }


def main(name: str, folder: str, seed: str, recipe: str) -> None:
    torch.set_num_threads(json.loads(recipe)["launch"]["threads"])
    with tempfile.TemporaryDirectory() as beside:
        chdir(beside)
        Path("results").mkdir()
        found = globals()[name](Path(folder), int(seed), json.loads(recipe))
        chdir("/")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
