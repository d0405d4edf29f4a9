"""Hugging Face Accelerate.

Checkpoints: https://huggingface.co/docs/accelerate/usage_guides/checkpoint (automatic_checkpoint_naming, save_state,
load_state, register_for_checkpointing, skip_first_batches). split_batches keeps the global batch, and so the
schedule, when the number of processes changes; use_seedable_sampler makes the order reproducible
(https://huggingface.co/docs/accelerate/package_reference/utilities, DataLoaderConfiguration). A generator of its
own for the loader: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import torch
import work
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader


class Progress:
    """The number of steps made, saved and loaded with the rest."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def main() -> None:
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(str(work.RUN), automatic_checkpoint_naming=True),
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=work.SEED),
    )
    witness, progress = work.Witness(), Progress()
    set_seed(work.SEED, device_specific=True)
    bare = work.Model(witness)
    optimizer = work.optimizer_for(bare)
    loader = DataLoader(work.Samples(), work.BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    model, optimizer, loader, schedule = accelerator.prepare(bare, optimizer, loader, work.schedule_for(optimizer))
    accelerator.register_for_checkpointing(progress)
    saved = work.RUN / "checkpoints"
    if saved.is_dir() and any(saved.iterdir()):
        accelerator.load_state()  # the newest one, by its number
        newest = max(int(path.name.removeprefix("checkpoint_")) for path in saved.iterdir())
        accelerator.project_configuration.iteration = newest + 1
    while progress.step < work.STEPS:
        epoch, done = divmod(progress.step, work.STEPS_PER_EPOCH)
        loader.set_epoch(epoch)
        for batch in accelerator.skip_first_batches(loader, done) if done else loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            schedule.step()
            progress.step += 1
            witness.step(progress.step)
            if progress.step % work.EVERY == 0:
                accelerator.save_state()
    witness.done(bare)
    accelerator.end_training()


if __name__ == "__main__":
    main()
