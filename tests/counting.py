"""An engine that is a folder: every request makes one more job in it, whatever its name, as sbatch does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from drivetrain.launch.states import UNKNOWN, JobStatus, State
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.spec.settings import nothing


@dataclass(frozen=True, kw_only=True)
class CountingTarget(ResourceSpec):
    factory: ClassVar[str] = "counting:Counting"
    kind: Annotated[Literal["counting"], nothing("a folder")] = "counting"
    engine: Annotated[str, nothing("where")]


class Counting:
    def __init__(self, settings):
        self.folder = Path(settings.engine)

    def render(self, job):
        return []

    def submit(self, job):
        native = str(len(list(self.folder.iterdir())))
        (self.folder / native).write_text(job.token)
        return native

    def find(self, job):
        return next((one.name for one in self.folder.iterdir() if one.read_text() == job.token), None)

    def look(self, job, native):
        path = self.folder / native
        if not path.exists():
            return UNKNOWN
        return JobStatus(state=State.CANCELLED if path.suffix else State.RUNNING, native="there")

    def cancel(self, job, native):
        (self.folder / native).unlink()

    def requeue(self, job, native):
        return self.submit(job)
