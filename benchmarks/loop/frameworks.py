"""One function a framework: `train(steps) -> seconds per step`, as its own documentation advises for plain training.

Logging, progress bars and checkpoints are switched off where a framework has them; drivetrain keeps its ledger, which
cannot be switched off. Only the time between the first and the last step counts, so set-up is nobody's cost.
"""

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from task import CLIP, LR, WARMUP, Batches, Classify, Rows, RowSource, build, factor, loss_of, optimizer_for

SKIPPED = 100  # first steps, which are not timed


class Clock:
    """Takes the time at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> np.ndarray:
        """Seconds of each step after the skipped ones."""
        return np.diff(self.ends[SKIPPED:])


def bare(steps: int) -> np.ndarray:
    """The loop that one writes without a framework."""
    clock, rows = Clock(), Rows()
    model = build()
    optimizer = optimizer_for(model)
    for step in range(steps):
        features, classes = rows.batch(step)
        for group in optimizer.param_groups:
            group["lr"] = LR * factor(step + 1, steps)
        optimizer.zero_grad()
        loss = loss_of(model, features, classes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        clock.tick()
    return clock.seconds()


def drivetrain(steps: int, **settings: object) -> np.ndarray:
    """Ours, with ledger, finite vote, loss and norm of each step recorded, seeds by position, telemetry."""
    import drivetrain as framework
    import drivetrain.run.build as opening
    import drivetrain.run.opened as opened
    from drivetrain.ledger.ledger import read

    opening.open_source = lambda *_, **__: RowSource()  # an array in memory is not a shipped kind of source
    opened.build_task = lambda _: Classify()
    recipe = {
        "name": "bench",
        "task": {"kind": "task:Classify"},
        "data": {"train": {"sources": [{"kind": "task:RowSource"}]}},
        "batch": {"size": 32},
        "budget": {"steps": steps},
        "optimizer": {"lr": LR, "weight_decay": 0.0, "clip": CLIP},
        "schedule": {"kind": "cosine", "warmup": {"steps": WARMUP}},
        "launch": {"threads": 1},
        **settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = framework.train(recipe, run=folder, progress=False).run
        ends = [record.time for record in read(run / "ledger.jsonl") if record.kind == "step"]
    return np.diff(ends[SKIPPED:])


def without_telemetry(steps: int) -> np.ndarray:
    """Ours, and the ledger is told nothing about the process."""
    return drivetrain(steps, telemetry={"every": None})


def lightning(steps: int) -> np.ndarray:
    """https://lightning.ai/docs/pytorch/stable/starter/introduction.html"""
    import lightning as framework

    clock = Clock()

    class Module(framework.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = build()

        def training_step(self, batch, _):
            return loss_of(self.model, *batch)

        def configure_optimizers(self):
            optimizer = optimizer_for(self.model)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step + 1, steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_batch_end(self, *_):
            clock.tick()

    trainer = framework.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(steps), batch_size=None))
    return clock.seconds()


def fabric(steps: int) -> np.ndarray:
    """https://lightning.ai/docs/fabric/stable/"""
    from lightning.fabric import Fabric

    clock, framework = Clock(), Fabric(accelerator="cpu", devices=1)
    model = build()
    model, optimizer = framework.setup(model, optimizer_for(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step + 1, steps))
    for batch in framework.setup_dataloaders(torch.utils.data.DataLoader(Batches(steps), batch_size=None)):
        optimizer.zero_grad()
        framework.backward(loss_of(model, *batch))
        framework.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        schedule.step()
        clock.tick()
    return clock.seconds()


def accelerate(steps: int) -> np.ndarray:
    """https://huggingface.co/docs/accelerate/basic_tutorials/migration"""
    from accelerate import Accelerator

    clock, framework = Clock(), Accelerator(cpu=True)
    model = build()
    optimizer = optimizer_for(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step + 1, steps))
    loader = torch.utils.data.DataLoader(Batches(steps), batch_size=None)
    model, optimizer, loader, schedule = framework.prepare(model, optimizer, loader, schedule)
    for features, classes in loader:
        optimizer.zero_grad()
        framework.backward(loss_of(model, features, classes))
        framework.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        clock.tick()
    return clock.seconds()


def hf_trainer(steps: int) -> np.ndarray:
    """https://huggingface.co/docs/transformers/main_classes/trainer"""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = Clock()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build()

        def forward(self, features, classes):
            return {"loss": loss_of(self.model, features, classes)}

    class Ticks(TrainerCallback):
        def on_step_end(self, *_, **__):
            clock.tick()

    class Samples(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = Rows()

        def __len__(self):
            return steps * 32

        def __getitems__(self, ids):
            chosen = self.rows.order[np.asarray(ids) % len(self.rows.order)]
            return [(self.rows.features[chosen], self.rows.classes[chosen])]

        def __getitem__(self, index):
            return self.__getitems__([index])[0]

    def collate(rows):
        return {"features": torch.from_numpy(rows[0][0]), "classes": torch.from_numpy(rows[0][1])}

    model = Model()
    optimizer = optimizer_for(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step + 1, steps))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            max_steps=steps,
            max_grad_norm=CLIP,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=Samples(),
            data_collator=collate,
            optimizers=(optimizer, schedule),
            callbacks=[Ticks()],
        ).train()
    return clock.seconds()


def ignite(steps: int) -> np.ndarray:
    """https://docs.pytorch.org/ignite/quickstart.html"""
    from ignite.engine import Engine, Events

    clock = Clock()
    model = build()
    optimizer = optimizer_for(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step + 1, steps))

    def update(_, batch):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    framework = Engine(update)
    framework.add_event_handler(Events.ITERATION_COMPLETED, lambda _: schedule.step())
    framework.add_event_handler(Events.ITERATION_COMPLETED, lambda _: clock.tick())
    framework.run(torch.utils.data.DataLoader(Batches(steps), batch_size=None), max_epochs=1)
    return clock.seconds()


FRAMEWORKS: dict[str, Callable[[int], np.ndarray]] = {
    "bare": bare,
    "drivetrain": drivetrain,
    "without-telemetry": without_telemetry,
    "fabric": fabric,
    "accelerate": accelerate,
    "ignite": ignite,
    "lightning": lightning,
    "hf-trainer": hf_trainer,
}
os.environ.setdefault("ACCELERATE_USE_CPU", "true")
