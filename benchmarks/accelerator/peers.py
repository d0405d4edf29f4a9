"""The same training by others: a loop by hand, and the Hugging Face Trainer, a block of steps at a time."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from accelerator.check import NotApplicableError
from drivetrain.tasks.language_model.hugging_face import llama_config
from drivetrain.tasks.language_model.llama import Llama
from drivetrain.tasks.language_model.recipe import Llama as Settings

LR, DECAY, CLIP = 1e-3, 0.1, 1.0
Batches = list[dict[str, Tensor]]
Steps = Callable[[int], None]
"""Makes so many steps."""


def by_hand(settings: Settings, device: torch.device, batches: Batches, *, compiled: bool) -> Steps:
    """The loop that one writes: autocast to bf16, accumulation, clipping, fused AdamW; blocks compiled as ours are."""
    torch.manual_seed(0)
    model = Llama(settings).to(device)
    for layer in model.layers if compiled else ():
        layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)
    tokens = sum(batch["targets"].numel() for batch in batches)

    def steps(count: int) -> None:
        for _ in range(count):
            for batch in batches:
                with _autocast(device):
                    logits = model(batch["tokens"].to(device, non_blocking=True))
                    targets = batch["targets"].to(device, non_blocking=True)
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
                (loss / tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return steps


def hf_trainer(settings: Settings, device: torch.device, batches: Batches, *, compiled: bool) -> Steps:
    """The Hugging Face Trainer on its own Llama of this shape. It runs in a thread, which waits between blocks.

    Raises NotApplicableError where it is not installed."""
    try:
        import accelerate  # noqa: F401 - the Trainer needs it
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
    except ImportError as error:
        raise NotApplicableError(f"not installed: {error.name}") from error
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**llama_config(settings), use_cache=False))
    baton = Baton()

    class Turns(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            baton.stepped()

    micro, folder = len(batches[0]["tokens"]), tempfile.mkdtemp(prefix="trainer-")
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=len(batches),
        max_steps=1_000_000,
        learning_rate=LR,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        lr_scheduler_type="constant",
        bf16=device.type != "cpu",
        torch_compile=compiled,
        use_cpu=device.type == "cpu",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=_Samples(batches), callbacks=[Turns()])
    baton.begin(trainer.train)
    return baton.steps


class Baton:
    """Lets a loop that owns its thread make a few steps at a time."""

    def __init__(self) -> None:
        self._left = 0
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Have the loop wait for its first turn."""
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def steps(self, count: int) -> None:
        """Have it make so many steps. Raises what it has raised."""
        self._left = count
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def stepped(self) -> None:
        """Called by the loop after each step: it waits here for its next turn."""
        self._left -= 1
        if self._left == 0:
            self._done.release()
            self._go.acquire()

    def _run(self, work: Callable[[], object]) -> None:
        self._go.acquire()
        try:
            work()
        except BaseException as error:
            self._error = error
        self._done.release()


class _Samples(torch.utils.data.Dataset):
    """The samples of batches again and again, as the Trainer wants them: labels are shifted by the model."""

    def __init__(self, batches: Batches) -> None:
        self._rows = torch.cat([batch["tokens"] for batch in batches]).cpu()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        row = self._rows[number % len(self._rows)]
        return {"input_ids": row, "labels": row}


def _autocast(device: torch.device) -> Any:
    return nullcontext() if device.type == "cpu" else torch.autocast(device.type, torch.bfloat16)


PEERS = {"by hand": by_hand, "HF Trainer": hf_trainer}
