"""The records of a ledger, one frozen dataclass a kind. `docs/ledger.md` tells the same to people.

Times are Unix times in seconds, `seconds` are durations, `bytes` are bytes. A step's number counts from 1; 0 is the
start. A position is how many samples of the order came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from operator import itemgetter
from typing import Any, ClassVar, TypeAlias, get_args

from drivetrain.ledger.fields import Fields, reader

Scores: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Fields):
    """What bits are promised: two attempts with the same claim can come to the same ones."""

    class_: str
    """`exact`, `same-world` or `counted`: `docs/exactness.md`."""
    key: str
    """A digest of what the bits depend on: device, threads, libraries, processes or lanes."""
    code: str | None = None
    """Digest of what the user's own code does, where the recipe names some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Fields):
    """What an attempt is to reach, from the start of the run on."""

    samples: int
    """The position at the end."""
    steps: int
    """The last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops(Fields):
    """What model FLOPs utilization is computed of."""

    per_sample: float | None
    """Model FLOPs of a sample, forward and backward; null where the task does not know."""
    peak: float | None
    """Dense peak of one process's device at the recipe's precision, FLOP/s; null where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes(Fields):
    """How many samples a step takes."""

    size: int
    """Samples a step at the start."""
    ramp: tuple[tuple[int, int], ...]
    """Later changes: pairs of a number of steps, and the samples that a step takes after so many."""
    cost: int | None = None
    """What a step's samples cost at most; `size` is then the most samples that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Fields):
    """A stage of the samples' order: sources are drawn in other proportions from a position on."""

    start: int
    """The first position of the stage."""
    weights: tuple[float, ...]
    """One weight for each source, in the order of the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Fields):
    """What a `set` came to; empty for other commands."""

    changed: tuple[str, ...] | None = None
    """Dotted keys of the recipe that have another value since."""
    stage: Stage | None = None
    """The stage that it began, where a source's weight was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Fields):
    """A number that each rank has."""

    least: float
    """The smallest of the ranks' values."""
    most: float
    """The largest of them."""
    rank: int
    """The first rank that has the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory(Fields):
    """Live bytes of one process in a step, where most are alive."""

    bytes: int
    """All of them."""
    phase: str
    """What the process is at then: `forward`, `backward`, `optimizer` ..."""
    kinds: Mapping[str, int]
    """What they are for: `weights`, `gradients`, `optimizer`, `activations`, `communication`, `temporary`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank(Fields):
    """What a process takes, by a trace of its steps."""

    first: PlannedMemory
    """In the first step, in which optimizers begin their state."""
    later: PlannedMemory
    """In any other step."""
    flops: int
    """FLOPs of its operations in a step, with those that are computed again."""
    sent: int
    """Bytes that its collectives carry in a step, at most."""
    written: int
    """Bytes of its files of tensors and boxes in a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Fields):
    """What a run takes, by a trace of its steps."""

    ranks: Mapping[str, PlannedRank]
    """By rank: the first, or where they are stages of a pipeline the first of each place along it."""
    state: int
    """Bytes of all tensors of a commit."""
    kept: int
    """Commits that lie on the disk at most, with the one that is being written."""
    how: str
    """What was traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFileRecord(Fields):
    """A file of the user's own code."""

    digest: str
    """Of what it does: 16 hex digits over its syntax tree without comments, docstrings and formatting; of a file that
    is no Python source, the start of its SHA-256."""
    sha256: str
    """SHA-256 of its content, and its name below the run's `code/`, where it is kept."""
    affects: str
    """What it decides, as fields of recipes do: `bits`, `cost` or `nothing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCodeRecord(Fields):
    """The user's own code, as an attempt has found it at its start."""

    digest: str
    """12 hex digits over what its files do; only those that decide bits."""
    files: Mapping[str, CodeFileRecord]
    """By name, such as package/module.py, or ./declared.json."""
    unread: tuple[str, ...]
    """Modules and names that it uses and of which nothing is known."""
    git: str | None
    """The commit of the recipe's folder, with `+` where files differ from it; null outside a repository."""
    late: Mapping[str, CodeFileRecord] | None = None
    """Files that came late in an earlier attempt and are still there, as they are now; missing where none did."""

    @property
    def known(self) -> Mapping[str, CodeFileRecord]:
        """All of its files that a start knows of."""
        return {**self.files, **(self.late or {})}


@dataclass(frozen=True, kw_only=True)
class RecordBase(Fields):
    """What every record has; its writer fills it in."""

    kind: ClassVar[str]
    time: float = 0.0
    """When it was written; of a step, when its work was handed to the device."""
    chain: str | None = None
    """32 hex digits that chain it to the record before; none before it is written."""

    def to_json(self) -> dict[str, Any]:
        """The record as its line has it."""
        return {"kind": self.kind, **Fields.to_json(self)}


@dataclass(frozen=True, kw_only=True)
class AttemptPart(RecordBase):
    """A record that an attempt has written."""

    attempt: int = 0
    """Number of the attempt, from 1; its writer fills it in."""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(AttemptPart):
    """An attempt begins: one start of the run. What was done after `from_step` by attempts before is void."""

    kind: ClassVar[str] = "attempt"
    from_step: int
    """The step that it goes on from."""
    from_position: int
    """The position that it goes on from."""
    world: int
    """Processes that train together."""
    claim: Claim
    """What bits are promised."""
    host: str
    """Name of the first process's machine."""
    device: str
    """Name of the first process's device."""
    started: float
    """When its command was given."""
    startup: Mapping[str, float]
    """Seconds of each part of the start: `import`, `join`, `data`, `find`, `build`, `load`, `ledger` ..."""
    overrides: tuple[str, ...]
    """KEY=VALUE of the command line."""
    budget: Budget
    """What it is to reach."""
    flops: Flops | None = None
    """What model FLOPs utilization is computed of."""
    tokens_per_sample: int | None
    """Tokens of a sample where all have as many, else null."""
    parameters: Mapping[str, int]
    """Parameters by network."""
    recipe: str
    """Digest of the recipe's fields that bits depend on."""
    settings: str = ""
    """Digest of these fields and of all that may be set while a run trains."""
    data: Mapping[str, str]
    """Digest of the content by place of the recipe."""
    environment: Mapping[str, Any]
    """Versions and settings that bits depend on; `package.NAME` are those of packages that the user's own code
    imports."""
    user_code: UserCodeRecord | None = None
    """The user's own code, where the recipe names some. Older runs do not have it."""
    order: Mapping[str, Any]
    """What the order of the samples follows from: `sizes` of the sources, `seed`, `shuffle`, `stages`, `buckets`."""
    quarantine: tuple[tuple[int, tuple[int, ...]], ...]
    """Samples that are left out: pairs of the first step without them, and their ids."""
    batch: BatchSizes
    """Samples a step."""
    lanes: int
    """Logical workers."""
    sources: Mapping[str, int | None]
    """Samples by source; null for a stream."""
    epoch: int
    """Number of the lease: how often the directory was taken."""
    after: Mapping[str, Any] | None
    """How the start before ended, where a supervisor has started again: `code`, `cause`, `step`, `phase` ..."""
    survivors: bool
    """Whether it goes on from what processes left in memory that outlived another."""
    replay: str | None
    """The directory of the run that it makes again."""
    resident: int | None = None
    """Bytes of the first process in memory before it has networks. Older runs do not have it."""


@dataclass(frozen=True, kw_only=True)
class StepRecord(AttemptPart):
    """A step is made. Of its records the last one counts, unless what came later has made it void."""

    kind: ClassVar[str] = "step"
    step: int
    """Its number."""
    start: int
    """The position before it."""
    stop: int
    """The position after it."""
    samples: str
    """Digest of the ids that were read, over all processes: 16 hex digits."""
    losses: Mapping[str, float]
    """Mean of each loss over the step's samples or tokens."""
    counts: Mapping[str, int]
    """What losses are means over, by unit: `samples`, `tokens` ..."""
    norm: Mapping[str, float]
    """Norm of each network's gradient, before it was clipped; a network that moved twice also as `NAME#2`."""
    lr: Mapping[str, float]
    """Learning rate of each network; of rows of tables as `NETWORK/TABLE`, the first table of those that move alike."""
    seconds: float
    """Its time, without that of its data and of compiling, to 0.1 microseconds."""
    wait: float
    """How long it waited for its data, to 0.1 microseconds."""
    compile: float | None = None
    """Seconds in which torch's compiler worked, where it did."""
    skipped: Mapping[str, str] | None = None
    """Networks that should have moved and did not, and why: `not finite`, `overflow`, `spike`, `listed` ..."""
    scale: float | None = None
    """The factor on the loss, with fp16."""
    weights: Mapping[str, float] | None = None
    """What each loss weighed in the step's gradient, where a rule found it."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(AttemptPart):
    """The validation sets are scored."""

    kind: ClassVar[str] = "evaluation"
    step: int
    """The step before it."""
    position: int
    """The position."""
    seconds: float
    """How long it took."""
    metrics: Scores
    """Values by set and metric; none where no metric has gathered anything of a set."""
    counts: Mapping[str, int]
    """Samples that were scored, by set."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(AttemptPart):
    """A step's training samples are scored, just before it learns from them."""

    kind: ClassVar[str] = "training"
    step: int
    """The step that learns from them."""
    position: int
    """The position before it."""
    seconds: float
    """How long it took."""
    metrics: Mapping[str, float]
    """Values by metric; empty where no metric has gathered anything."""
    means: Mapping[str, float]
    """Running means by metric, of these and of those before, which count less and less."""


@dataclass(frozen=True, kw_only=True)
class FinalRecord(AttemptPart):
    """What is scored once, when a run is done: test sets, and whole the validation sets that were scored in part."""

    kind: ClassVar[str] = "final"
    part: str
    """`test` or `validation`."""
    step: int
    """The last step."""
    position: int
    """The position."""
    seconds: float
    """How long it took."""
    metrics: Scores
    """Values by set and metric; none where no metric has gathered anything of a set."""
    counts: Mapping[str, int]
    """Samples that were scored, by set."""


@dataclass(frozen=True, kw_only=True)
class TelemetryRecord(AttemptPart):
    """What training has cost the processes since the telemetry before."""

    kind: ClassVar[str] = "telemetry"
    step: int
    """The last step that it covers."""
    steps: int
    """How many steps it covers."""
    world: int
    """Processes that train together."""
    phases: Mapping[str, float]
    """Seconds of the first rank by phase, to the microsecond."""
    host: Mapping[str, int]
    """Bytes of the first rank's process in memory: `resident` now, `peak` so far."""
    device: Mapping[str, int]
    """Bytes of the first rank's device: `allocated`, `reserved`, `peak`; empty where it does not tell."""
    ranks: Mapping[str, Spread]
    """Over all ranks: `own_seconds` a step (of its own work), `host_peak` and `device_peak` in bytes."""
    counted: Mapping[str, tuple[int, ...]] | None = None
    """What modules have counted in these steps, by module and name, such as the tokens of each expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Fields):
    """How many of some numbers lie in each of as many bins of equal width as there are counts."""

    low: float
    """Where the first bin begins: the smallest number."""
    high: float
    """Where the last one ends: the largest."""
    counts: tuple[int, ...]
    """How many lie in each."""

    @property
    def edges(self) -> list[float]:
        """Where bins begin and end: one more than there are bins."""
        width = (self.high - self.low) / len(self.counts)
        return [*(self.low + width * place for place in range(len(self.counts))), self.high]


@dataclass(frozen=True, kw_only=True)
class StatisticsRecord(AttemptPart):
    """What a step tells of gradients and weights, where the recipe asks for it."""

    kind: ClassVar[str] = "statistics"
    step: int
    """The step that was measured."""
    networks: Mapping[str, Mapping[str, float]]
    """By network: norms of the `weights` before the step and of their `change`; `signal` and `noise` of gradients."""
    histograms: Mapping[str, Mapping[str, Histogram]] | None = None
    """By network, of the `weights` before the step and of their `change`, where the recipe asks for it."""


@dataclass(frozen=True, kw_only=True)
class ShowRecord(AttemptPart):
    """What the task shows of some samples, after an evaluation or when it is time."""

    kind: ClassVar[str] = "show"
    step: int
    """The step before it."""
    text: Mapping[str, str]
    """Texts by name."""
    files: Mapping[str, str]
    """Files by name, relative to the run directory; texts have one, too."""


@dataclass(frozen=True, kw_only=True)
class CommitRecord(AttemptPart):
    """A commit is on the disk and verified."""

    kind: ClassVar[str] = "commit"
    step: int
    """The step that it holds."""
    position: int
    """The position that it holds."""
    name: str
    """Its folder under `checkpoints/`."""
    seconds: float
    """How long training waited for it, all in all."""
    waited: float
    """Of these, how long for the commit before it."""
    writing: float
    """Seconds that writing took beside training."""
    bytes: int
    """Size of all its files."""
    held: Mapping[str, int]
    """Bytes in memory by kind: `networks`, `optimizers` ..., and `gradients`."""
    manifest: str
    """SHA-256 of its manifest, 64 hex digits."""
    removed: tuple[str, ...]
    """Commits that were rotated away for it."""
    coverage: Mapping[str, int]
    """Samples taken of each source so far."""
    written: int | None = None
    """Bytes of the first rank's files of tensors and boxes. Older runs do not have it."""


@dataclass(frozen=True, kw_only=True)
class MissRecord(AttemptPart):
    """A commit could not be made; the ones before are as they were."""

    kind: ClassVar[str] = "miss"
    step: int
    """The step that it was to hold."""
    code: int
    """Exit code that stands for the cause."""
    cause: str
    """Why."""


@dataclass(frozen=True, kw_only=True)
class StreamEndRecord(AttemptPart):
    """A training stream has ended, or a lane of it: from there on it gives nothing."""

    kind: ClassVar[str] = "stream_end"
    step: int
    """The step before the one in which it was seen."""
    source: str
    """The source's name."""
    samples: tuple[int | None, ...]
    """How many samples each lane has in all, null for one that goes on; one number where it is read as a whole."""


@dataclass(frozen=True, kw_only=True)
class CommandRecord(AttemptPart):
    """A command to the run, of `drivetrain control`; durable before it is done."""

    kind: ClassVar[str] = "command"
    step: int
    """The step after which it was done or refused."""
    settings: str
    """Digest of the settings that it was given to."""
    id: str
    """The same wherever the command is told of."""
    verb: str
    """`pause`, `resume`, `save`, `evaluate`, `stop`, `pin`, `profile` or `set`; empty where it was no command."""
    argument: str
    """KEY=VALUE of `set`, the steps of `profile`."""
    effect: Effect | None = None
    """What it came to; left out where it was refused."""
    refused: str | None = None
    """Why it was not done."""
    replayed: bool | None = None
    """True where it was done again, since its step was made again or the run is a replay."""


@dataclass(frozen=True, kw_only=True)
class PauseRecord(AttemptPart):
    """A pause has ended."""

    kind: ClassVar[str] = "pause"
    step: int
    """The step after which the run stood."""
    seconds: float
    """How long."""


@dataclass(frozen=True, kw_only=True)
class SpikeRecord(AttemptPart):
    """A step had numbers far above those before it."""

    kind: ClassVar[str] = "spike"
    step: int
    """The step."""
    text: str
    """Which numbers, and their bounds."""


@dataclass(frozen=True, kw_only=True)
class RollbackRecord(AttemptPart):
    """A bad step is undone. What was done after step `to` is void."""

    kind: ClassVar[str] = "rollback"
    step: int
    """The bad step."""
    to: int
    """The step that the run goes on from."""
    why: str
    """What was wrong."""
    samples: tuple[int, ...]
    """Ids that are left out from there on."""
    seconds: float
    """How long it took to go back."""


@dataclass(frozen=True, kw_only=True)
class InitialRecord(AttemptPart):
    """Weights that a run began with, from another run or a file; names are NETWORK/NAME."""

    kind: ClassVar[str] = "initial"
    from_: str
    """The path in the recipe."""
    source: str
    """The commit or file that was read."""
    digest: str
    """SHA-256 of the commit's manifest or of the file."""
    bytes: int
    """Of what was loaded."""
    loaded: tuple[str, ...]
    """Tensors that were loaded."""
    renamed: tuple[tuple[str, str], ...]
    """Of these, those that have another name: pairs of the one there and the one here."""
    fresh: tuple[str, ...]
    """Tensors that stay as they were drawn."""
    left_out: tuple[str, ...]
    """Tensors of the source that nobody here has."""
    frozen: int
    """How many parameters do not train."""


@dataclass(frozen=True, kw_only=True)
class CodeRecord(AttemptPart):
    """Code of the user's that came late: loaded while it trained, and not found at the start."""

    kind: ClassVar[str] = "code"
    step: int
    """The commit's step by which it was found."""
    files: Mapping[str, CodeFileRecord]
    """By name, as in `user_code` of an attempt."""
    places: Mapping[str, str]
    """Where each file lies."""


@dataclass(frozen=True, kw_only=True)
class CompileRecord(AttemptPart):
    """The first rank's process has had a graph compiled."""

    kind: ClassVar[str] = "compile"
    step: int
    """The step that was made or, with `phase: evaluation`, the one before."""
    phase: str
    """What the process was at: `forward`, `backward`, `evaluation` ..."""
    modules: str
    """Whose forward pass it is, as NETWORK.MODULE, with `*` for what equal ones differ in; empty for other code."""
    function: str
    """What was compiled: FILE:LINE NAME."""
    seconds: float
    """How long it took."""
    why: str
    """`first`, or what of the graphs before did not hold, or why there is no graph."""
    cached: bool
    """Whether the compiler's files had it, so that no code was made."""


@dataclass(frozen=True, kw_only=True)
class PlanRecord(AttemptPart):
    """What the run takes, as a process beside it has found by a trace; or why it has not."""

    kind: ClassVar[str] = "plan"
    of: str
    """Digest of what was planned: the recipe's fields that decide bits or cost, processes, lanes."""
    world: int
    """Processes that it was planned for."""
    mesh: Mapping[str, int]
    """Those along each axis that has several."""
    seconds: float
    """How long that took, beside training."""
    planned: Planned | None = None
    """What was found."""
    failed: str | None = None
    """Why nothing was."""


@dataclass(frozen=True, kw_only=True)
class NoteRecord(AttemptPart):
    """Something that a person should know."""

    kind: ClassVar[str] = "note"
    text: str
    """A sentence."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord(AttemptPart):
    """An attempt has ended; one that was killed has none."""

    kind: ClassVar[str] = "exit"
    code: int
    """Exit code."""
    cause: str
    """Why."""
    step: int
    """The last step."""
    position: int
    """The position."""
    seconds: Mapping[str, float]
    """The attempt's time by use: `start`, `wait`, `step`, `evaluation`, `commit`, `profile`, `pause`, `rollback`,
    `compile` where something was."""


@dataclass(frozen=True, kw_only=True)
class RepairRecord(RecordBase):
    """A torn last line was cut off before an attempt."""

    kind: ClassVar[str] = "repair"
    bytes: int
    """How many went."""


@dataclass(frozen=True, kw_only=True)
class UnknownRecord:
    """A record of a kind that this version does not know, as another version wrote it."""

    kind: str
    time: float
    fields: Mapping[str, Any]
    """All of it, as its line has it."""

    @property
    def chain(self) -> str | None:
        """As of other records."""
        return self.fields.get("chain")

    def to_json(self) -> dict[str, Any]:
        """The record as its line has it."""
        return dict(self.fields)


LoopRecord: TypeAlias = (
    AttemptRecord
    | StepRecord
    | EvaluationRecord
    | TrainingRecord
    | FinalRecord
    | TelemetryRecord
    | StatisticsRecord
    | ShowRecord
    | CommitRecord
    | MissRecord
    | StreamEndRecord
    | CommandRecord
    | PauseRecord
    | SpikeRecord
    | RollbackRecord
    | InitialRecord
    | CodeRecord
    | CompileRecord
    | PlanRecord
    | NoteRecord
    | ExitRecord
)
"""What an attempt writes."""
Record: TypeAlias = LoopRecord | RepairRecord | UnknownRecord


def parse(fields: Mapping[str, Any]) -> Record:
    """The record that a line's JSON object is. Fields that its kind does not have are passed over.

    Raises ValueError where a field is missing or something else than its kind has.
    """
    try:
        read = _READERS.get(fields["kind"])
        return read(fields) if read else UnknownRecord(kind=fields["kind"], time=fields.get("time", 0.0), fields=fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a record has another form than a run writes: {type(error).__name__}: {error}") from error


def _step(fields: Mapping[str, Any]) -> StepRecord:
    """As `reader(StepRecord)` would, in a tenth of the time: there is one for every step. Its numbers are believed."""
    _OF_A_STEP(fields)  # raises KeyError where one is missing
    # A record that has a string among its numbers takes the long way, which makes a float of it.
    for numbers in (fields["losses"], fields["norm"], fields["lr"]):
        for value in numbers.values():
            if value.__class__ is str:  # it is not finite
                return reader(StepRecord)(fields)
    # The constructor of a frozen dataclass sets one field after the other, by a slow way.
    made = object.__new__(StepRecord)
    made.__dict__.update(fields)
    return made


KINDS: Mapping[str, type[RecordBase]] = {cls.kind: cls for cls in get_args(Record) if issubclass(cls, RecordBase)}
"""The class of each kind."""
_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    **{kind: reader(cls) for kind, cls in KINDS.items()},
    StepRecord.kind: _step,
}
_OF_A_STEP = itemgetter(*(part.name for part in dataclass_fields(StepRecord) if part.default is not None))
