"""What the board answers, as types: the contract with its pages and with programs. `schema.py` makes docs of it.

Numbers that are not finite are null. Times are Unix time in seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

State = Literal["starts", "trains", "paused", "done", "stopped", "cut off", "failed", "crash loop", "damaged", "gone"]


class Best(TypedDict):
    """The best value of a metric; where the recipe names none the newest of the first one."""

    metric: str
    value: float
    step: int
    mode: Literal["min", "max"] | None


class OwnLine(TypedDict):
    """A run in one line, as its directory tells."""

    id: str
    """Stands for the run's folder in addresses; the same as long as the folder has its path."""
    name: str
    """Of the folder."""
    folder: str
    mesh: Mapping[str, int]
    """Processes along each axis that has several."""
    read: float
    """The share of the ledger that was read, up to 1."""
    state: State
    code: int | None
    """Exit code; null while it trains, and where it was cut off."""
    cause: str
    left: float | None
    """Seconds of training that are left, as far as it goes on as in the last steps; null unless it trains."""
    records: int
    step: int
    """The last one that counts."""
    samples: int
    """Up to that step."""
    tokens: int
    """Up to that step; 0 where the run counts none."""
    losses: Mapping[str, float | None]
    """The last step's, by name."""
    spark: list[float | None]
    """The first loss in up to 60 points."""
    best: Best | None
    goodput: float | None
    """The share of all seconds so far that went into steps which count."""
    attempts: int
    world: int
    """Processes of the newest attempt."""
    steps: int
    """The last step of the budget."""
    started: float | None
    """When the first attempt began."""
    last: float | None
    """When the newest attempt was heard of last."""
    commits: int
    commit_bytes: int | None
    """Of the newest commit."""
    rates: Mapping[str, float | None]
    """Samples and tokens a second of all processes, over the newest steps."""
    mfu: float | None


class NoteTold(TypedDict):
    """What the user said of a run."""

    title: str | None
    """What the user calls it."""
    tags: list[str]
    hidden: bool
    archived: bool


class Line(OwnLine, NoteTold):
    """A run in one line, with what the user said of it."""

    read_only: bool
    """Whether this board steers nothing."""


class ListedLine(Line):
    """A run in the table."""

    values: Mapping[str, Any]
    """By the names that were asked for as `column`; null where a run has none."""


class Table(TypedDict):
    """The runs, the newest first."""

    runs: list[ListedLine]
    """Those that the filter lets through."""
    total: int
    """All that there are."""
    read_only: bool
    folders: list[str]
    """Where runs are looked for."""
    problem: str | None
    """What is wrong with the filter; where it is not understood, all runs are told."""


class Keys(TypedDict):
    """What filters and columns may name."""

    keys: list[str]
    """Of recipes."""
    metrics: list[str]
    """Names of curves."""


class Series(TypedDict):
    """A curve by name."""

    name: str
    rows: int
    """Points."""
    last: float | None
    dense: bool
    """Whether steps have it; else other records."""


class AttemptMade(TypedDict):
    """One start of a run."""

    number: int
    world: int
    from_step: int
    to_step: int
    started: float
    ended: float
    code: int | None
    cause: str
    host: str
    device: str
    seconds: Mapping[str, float]
    """By use."""
    after: Mapping[str, Any] | None
    """Why the attempt before it ended, as the supervisor saw it."""
    claim: Mapping[str, Any]
    """What bits are promised."""


class OwnDetail(TypedDict):
    """What a run's page shows besides its line."""

    series: list[Series]
    kinds: Mapping[str, int]
    """Records of each kind."""
    attempts_made: list[AttemptMade]
    seconds: Mapping[str, float]
    """By use."""
    parameters: Mapping[str, Any]
    """Numbers of parameters by network."""
    axes: list[str]
    """What curves can be drawn over."""


class Detail(Line, OwnDetail):
    """A run as a whole."""


class Curve(TypedDict):
    """One of the curves that follow the head."""

    name: str
    length: int
    """Points."""
    exact: bool
    """Whether each point is one step or record."""


class CurvesHead(TypedDict):
    """The head of curves: its length (u32, little endian), itself, then of each curve x (f8), low, high, mean (f4) and
    flags (u1: 1 made again or undone, 2 a new stretch begins), each filled up to a multiple of eight bytes."""

    records: int
    rows: int
    span: tuple[float, float] | None
    """From where to where on the axis the run's steps go; null before the first."""
    curves: list[Curve]


class Mark(TypedDict):
    """Something that happened, with its place on each axis."""

    kind: str
    step: float
    samples: float
    tokens: float
    seconds: float
    time: float
    text: str
    void: bool
    """Whether it was made again or undone."""
    offset: int
    """Where its record begins in the ledger."""


class Marks(TypedDict):
    """In the order of the ledger."""

    marks: list[Mark]
    left_out: int
    """Older ones, of kinds of which there are thousands."""


class SamplesOfSource(TypedDict):
    """The samples of a step that one source gave."""

    source: str
    total: int
    ids: list[int]
    """The first ones; ids count through all sources."""


class RecordTold(TypedDict):
    """A record as it stands in the ledger: `docs/ledger-schema.json`."""

    record: Mapping[str, Any]
    offset: int
    samples: list[SamplesOfSource]
    """Of a step."""


class RecordListed(TypedDict):
    """A record, and where it begins."""

    offset: int
    record: Mapping[str, Any]


class Chain(TypedDict):
    """Whether each record that was read follows from the one before."""

    whole: bool
    checked: int
    """Records."""
    damage: str | None


class Records(TypedDict):
    """Some records, the newest first."""

    records: list[RecordListed]
    more: bool
    before: int
    """The place to go on from, where there are more."""
    chain: Chain


class AttemptSpent(TypedDict):
    """Where an attempt's seconds went."""

    number: int
    started: float
    ended: float
    seconds: Mapping[str, float]


class RanksOverTime(TypedDict):
    """By record of telemetry: which rank had most work of its own, and the least and most seconds a step."""

    step: list[int]
    rank: list[int]
    least: list[float | None]
    most: list[float | None]
    world: list[int]


class MemoryOverTime(TypedDict):
    """By record of telemetry: bytes of the first rank's process, and of its device where there is one."""

    step: list[int]
    time: list[float]
    host: list[float | None]
    host_peak: list[float | None]
    device: list[float | None]
    device_peak: list[float | None]


class CommitSpent(TypedDict):
    """What a commit took."""

    step: int
    time: float
    name: str
    seconds: float
    waited: float
    writing: float | None
    bytes: int


class Timeline(TypedDict):
    """Where time and memory went. Seconds are by use; of thousands of records of telemetry evenly chosen ones count."""

    attempts: list[AttemptSpent]
    seconds: Mapping[str, float]
    phases: Mapping[str, float]
    slowest: Mapping[int, int]
    """How often each rank had most work of its own."""
    ranks: RanksOverTime
    memory: MemoryOverTime
    commits: list[CommitSpent]


class RecipeValue(TypedDict):
    """A value of the recipe."""

    key: str
    value: Any
    origin: str
    """File and line, command line, or default."""


class Recipe(TypedDict):
    """The recipe, the newest start's environment, and the user's own code."""

    values: list[RecipeValue]
    environment: Mapping[str, Any]
    code: Mapping[str, Any] | None


class Different(TypedDict):
    """A key that two recipes have not alike."""

    key: str
    here: Any
    there: Any


class RecipesDiffer(TypedDict):
    """The answer where another run was named."""

    differences: list[Different]


class DifferentOfSeveral(TypedDict):
    """A key that not all runs have alike; `values` by the runs' ids."""

    key: str
    values: Mapping[str, Any]


class Equal(TypedDict):
    """What runs had at the same place of an axis; `values` by the runs' ids."""

    name: str
    at: float
    values: Mapping[str, float | None]


class Compared(TypedDict):
    """Runs side by side."""

    differences: list[DifferentOfSeveral]
    at_equal: list[Equal]


class CommitListed(TypedDict):
    """A commit."""

    name: str
    step: int
    time: float
    bytes: int | None
    """Null where the run ended before the ledger told of it."""
    parent: str | None
    """The commit before it."""
    here: bool
    pinned: bool
    score: float | None
    best: bool


class Commits(TypedDict):
    """The newest first."""

    commits: list[CommitListed]


class SourceTaken(TypedDict):
    """A source of training samples."""

    source: str
    samples: int
    """That it has."""
    taken: int
    """That were read, repeated ones each time."""


class Data(TypedDict):
    """What was read so far."""

    sources: list[SourceTaken]
    left_out: list[int]
    """The first ids in quarantine."""
    left_out_total: int


class Samples(TypedDict):
    """Samples as `drivetrain data inspect --json` decodes them."""

    samples: list[Mapping[str, Any]]


class Shown(TypedDict):
    """Something that the task has shown: a text, or the name of a file."""

    step: int
    name: str
    kind: Literal["text", "audio", "picture"]
    text: NotRequired[str]
    file: NotRequired[str]


class Gallery(TypedDict):
    """What the task has shown, by step."""

    steps: list[int]
    items: list[Shown]


class FileListed(TypedDict):
    """A file of `logs/` or `profile/`."""

    name: str
    bytes: int
    time: float


class Logs(TypedDict):
    """The files there are."""

    logs: list[FileListed]
    profiles: list[FileListed]


class LogPart(TypedDict):
    """A part of a log, from byte `begin` to byte `end` of `size`."""

    text: str
    begin: int
    end: int
    size: int


class PlanRow(TypedDict):
    """Bytes that were planned, and what they came to."""

    planned: int
    measured: int | None
    measured_as: str


class Plan(TypedDict, total=False):
    """The newest plan's record, and beside it what was measured; nothing where there is no plan."""

    kind: str
    time: float
    attempt: int
    chain: str
    of: str
    world: int
    mesh: Mapping[str, int]
    seconds: float
    planned: Mapping[str, Any]
    failed: str | None
    rows: Mapping[str, PlanRow]
    flops: float | None
    """Of all processes in a step."""


class Verification(TypedDict):
    """What `drivetrain verify` has come to."""

    state: Literal["none", "runs", "holds", "broken"]
    holds: list[str]
    """The parts that hold so far."""
    certificate: Mapping[str, Any] | None
    error: str | None
    """What does not hold."""
    code: int | None


class CommandTold(TypedDict):
    """A command that the run has been left, has done, or has refused."""

    id: str
    verb: str
    argument: str
    step: int | None
    time: float | None
    state: Literal["left", "done", "refused"]
    refused: str | None
    record: Mapping[str, Any] | None
    """The ledger's."""


class Commands(TypedDict):
    """Those that the ledger has, the newest first."""

    commands: list[CommandTold]


class Prepared(TypedDict):
    """What a command would do. Nothing is done yet."""

    id: str
    """To give it under."""
    command: str
    affects: str
    ask: bool
    """Whether it cannot be undone, and is asked twice."""


class Job(TypedDict):
    """A job, as `drivetrain status --json`."""

    job: str
    target: str
    state: str
    native: str | None
    native_state: str
    reason: str
    progress: str
    run: str
    id: NotRequired[str | None]
    """The run's, where this board shows it."""
    kind: NotRequired[str]
    code: NotRequired[int | None]
    attempt: NotRequired[int]
    step: NotRequired[int | None]
    committed: NotRequired[int | None]
    recipe: NotRequired[str]
    submitted: NotRequired[float]
    cancelled: NotRequired[float | None]
    """When that was asked for."""
    heard: NotRequired[bool]
    unreachable: NotRequired[str]
    """Why its engine was not asked."""


class Jobs(TypedDict):
    """Those that were submitted from here."""

    jobs: list[Job]
    read_only: bool


class Text(TypedDict):
    """The last lines of a log."""

    text: str


class Said(TypedDict):
    """What was done, in a sentence."""

    said: str


class Trashed(TypedDict):
    """Where the run's files are until they are gone."""

    trash: str


class Refused(TypedDict):
    """Any answer whose status is 400 or more."""

    error: str
    hint: str
    """What to do."""
