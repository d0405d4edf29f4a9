"""Settings of classification: the task, adapters, and the sources of GLUE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Lt, MaxLen, MinLen

from drivetrain.data.recipe import Parted, Source
from drivetrain.spec.settings import Component, Count, Positive, Settings, bits, nothing

GlueName = Literal["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
GLUE = get_args(GlueName)
ATTENTION = r"(^|\.)(query|value|q_proj|v_proj|q_lin|v_lin|query_key_value|qkv_proj|Wqkv|c_attn)$"
"""What the inputs of attention are called in most models of `transformers`."""


@dataclass(frozen=True, kw_only=True)
class Lora(Settings):
    """Low-rank adapters beside frozen weights (Hu et al. 2021, arXiv 2106.09685). They and the head are trained."""

    rank: Annotated[Count, bits("of an adapter")] = 8
    alpha: Annotated[Positive, bits("what an adapter gives is taken times alpha / rank")] = 16.0
    dropout: Annotated[float, Ge(0), Lt(1), bits("on what an adapter is given")] = 0.0
    match: Annotated[str, bits("regular expression of the layers that get one, as dotted names")] = ATTENTION
    export: Annotated[
        Literal["merged", "adapters"], nothing("exported as one model, or as adapters in the layout of `peft`")
    ] = "merged"


@dataclass(frozen=True, kw_only=True)
class Classification(Component):
    """A text, or a pair of texts, to one of several labels or to a score, by a model of `transformers`."""

    factory: ClassVar[str] = "drivetrain.tasks.classification.task:ClassificationTask"
    kind: Annotated[Literal["classification"], bits("texts with labels")] = "classification"
    model: Annotated[str, MinLen(1), bits("a folder, a hub's id, or package:NAME/FOLDER inside an installed package")]
    revision: Annotated[str | None, bits("of a hub's id")] = None
    pretrained: Annotated[bool, bits("false: only the model's configuration is taken, its weights are drawn")] = True
    glue: Annotated[GlueName | None, bits("a task of GLUE, with its texts, labels and metrics; null: one's own")] = None
    folder: Annotated[str | None, bits("where the files of GLUE lie, for sources that do not say it")] = None
    texts: Annotated[
        tuple[str, ...] | None, MinLen(1), MaxLen(2), bits("one's own: the columns of the text, or of both")
    ] = None
    label: Annotated[str, bits("one's own: the column of the label")] = "label"
    labels: Annotated[
        tuple[str, ...] | None, MinLen(2), bits("one's own: the labels in order; null: those of the training data")
    ] = None
    regression: Annotated[bool, bits("one's own: the label is a number to come near to")] = False
    length: Annotated[Count, bits("tokens of a sample; what is longer is cut, of a pair the longer text first")] = 128
    multiple: Annotated[Count, bits("batches are padded to a multiple of this; 8 may be faster on an accelerator")] = 1
    dropout: Annotated[float | None, Ge(0), Lt(1), bits("of all that the model drops; null: the model's own")] = None
    lora: Annotated[Lora | None, bits("adapters; null: all weights are trained")] = None

    def __post_init__(self) -> None:
        own = self.texts is not None or self.labels is not None or self.regression
        if self.glue is not None and own:
            raise ValueError(f"glue: {self.glue} has its own texts and labels; leave texts, labels and regression out")
        if self.glue is None and self.texts is None:
            raise ValueError(f"needs texts, the columns to read, or glue: {', '.join(GLUE)}")
        if self.regression and self.labels is not None:
            raise ValueError("labels are for classes, and regression has none")

    @staticmethod
    def derive(task: Classification, source: Any) -> dict[str, Any]:
        """What a source takes from the task where the recipe leaves it open."""
        return {"task": task.glue, "path": task.folder}


@dataclass(frozen=True, kw_only=True)
class Glue(Parted, Source):
    """A set of one of GLUE's tasks: the TSV files as they are distributed, or what `DatasetDict.save_to_disk` wrote.

    `path` is the task's folder, or the one that holds a folder for each task (CoLA, RTE, SST-2 ...).
    """

    factory: ClassVar[str] = "drivetrain.tasks.classification.glue:open_glue"
    kind: Annotated[Literal["glue"], bits("one of GLUE's tasks")] = "glue"
    task: Annotated[GlueName | None, bits("which task; the recipe's `task.glue` where absent")] = None
    path: Annotated[str | None, bits("where it lies; the recipe's `task.folder` where absent")] = None
    set: Annotated[
        Literal["train", "dev", "test", "dev_mismatched", "test_mismatched"],
        bits("which set; dev and test of mnli are the matched ones"),
    ] = "train"
    malformed: Annotated[
        Literal["stop", "skip"], bits("a row that cannot be read ends the run, or is left out, counted and named")
    ] = "stop"
