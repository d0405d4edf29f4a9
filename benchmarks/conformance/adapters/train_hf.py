"""Hugging Face Trainer.

Resuming: https://huggingface.co/docs/transformers/trainer#checkpoints (save_steps, resume_from_checkpoint) with
get_last_checkpoint, as the library's own examples do. enable_jit_checkpoint saves after a SIGTERM
(https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments).
"""

import os

import work
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Steps(TrainerCallback):
    """Tells the witness of each optimizer step."""

    def __init__(self, witness: work.Witness) -> None:
        self.witness = witness

    def on_step_end(self, args, state, control, **kwargs):
        self.witness.step(state.global_step)


def main() -> None:
    arguments = TrainingArguments(
        output_dir=str(work.RUN),
        per_device_train_batch_size=work.BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        max_steps=work.STEPS,
        save_strategy="steps",
        save_steps=work.EVERY,
        enable_jit_checkpoint=True,
        seed=work.SEED,
        data_seed=work.SEED,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    witness = work.Witness()
    set_seed(work.SEED)  # the weights are drawn before the Trainer seeds
    model = work.Model(witness)
    optimizer = work.optimizer_for(model)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=work.Samples(),
        data_collator=default_collate,
        optimizers=(optimizer, work.schedule_for(optimizer)),
        callbacks=[Steps(witness)],
    )
    last = get_last_checkpoint(str(work.RUN)) if work.RUN.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    if trainer.state.global_step == work.STEPS:
        witness.done(model)


if __name__ == "__main__":
    main()
