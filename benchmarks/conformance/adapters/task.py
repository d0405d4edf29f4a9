"""Drivetrain, as docs/your-own-model.md advises: a task and a recipe, nothing about checkpoints or resumes."""

import work

from drivetrain import Task


class Samples(work.Samples):
    """Named here because a recipe's names are looked up beside it."""


class Classify(Task):
    """The network of all systems."""

    def networks(self):
        self.witness = work.Witness()
        self.model = work.Model(self.witness)
        return {"model": self.model}

    def loss(self, nets, batch):
        return nets["model"](**batch)["loss"]

    def update(self, step):
        step.minimize("model", self.loss)
        self.witness.step(step.index)
        if step.index == work.STEPS:
            self.witness.done(self.model)
