# ruff: noqa: E501 - a table has one mistake a line
"""Mistakes seeded one at a time into a recipe and user code that work: the last line names each, and its place, and the
exit code is right."""

import copy
import importlib
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch import trackers

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

CODE = Path(__file__).parent.parent / "seeded_mistakes.py"
HERE = "#!"
"""In seeded code: the line that is the place."""
RECIPE = {
    "name": "own",
    "task": {"kind": "mine_seeded:Fit", "width": 4},
    "data": {
        "train": {"sources": [{"name": "points", "kind": "mine_seeded:Points"}]},
        "validation": {"points": {"kind": "mine_seeded:Points", "count": 8}},
    },
    "lanes": 2,
    "batch": {"size": 4},
    "budget": {"steps": 4},
    "optimizer": {"kind": "mine_seeded:Descent", "lr": 0.1, "keep": 0.5},
    "schedule": {"kind": "mine_seeded:falling", "least": 0.2},
    "evaluate": {"every": {"steps": 2}, "metrics": {"share": {"kind": "mine_seeded:Share"}}},
    "callbacks": [{"kind": "mine_seeded:Hearing"}],
    "watch": {"sinks": [{"kind": "mine_seeded:Sending"}]},
    "launch": {"threads": 1, "restarts": 0},
}
TRAIN, CHECK = "train own.json --run run", "recipe check own.json"
DRY, FIRST = f"{TRAIN} --steps 0", f"{TRAIN} --steps 1"
PREDICT, GENERATE = "predict run --data points --to said.jsonl", "generate run --prompt a"
STREAM = {"data.train.sources.0": {"name": "points", "kind": "mine_seeded:flowing"}}
STATEFUL = {"data.train.sources.0": {"name": "points", "kind": "mine_seeded:Flow"}}
HALVING = {"schedule": {"kind": "mine_seeded:Halving", "every": {"steps": 2}}}
PLATEAU = {"kind": "plateau", "metric": "points/share", "every": {"steps": 2}}


@dataclass(frozen=True)
class Seeded:
    """A mistake: an edit of the code (what stood there, what stands there), or values by dotted key of the recipe.

    All commands but the last one go well. The last line on stderr of that one has all `words`, and the place: the line
    of code or recipe that has `at`, or a dotted key, a sample or a position among the words.
    """

    name: str
    code: Exit
    words: tuple[str, ...]
    old: str = ""
    new: str = ""
    recipe: Any = None
    commands: tuple[str, ...] = (CHECK,)
    at: str = ""


def written(name, code, recipe, *words, at="", commands=(CHECK,)):
    """In the recipe."""
    return Seeded(name, code, words, recipe=recipe, commands=commands, at=at)


def coded(name, code, old, new, *words, at=HERE, commands=(TRAIN,), recipe=None):
    """In the code."""
    return Seeded(name, code, words, old, new, recipe, commands, at)


def kind(name):
    return f'"kind": "{name}"'


BAD, REFUSED, OWN, DATA, NAN = Exit.BAD_RECIPE, Exit.SECURITY, Exit.INTERNAL, Exit.BAD_DATA, Exit.DIVERGED
THEIRS = "70 error in your own code: "
LOSS = 'return cross_entropy(nets["model"](points), sides)'
DEF_LOSS, DEF_NETWORKS = "def loss(self, nets, batch):", "def networks(self):"
NETWORKS = 'return {"model": nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, 2))}'
READ = "return torch.full((2,), index / self.count), index % 2"
FLOW, TOLD = "yield torch.full((2,), index % 7 / 7), index % 2", "yield torch.full((2,), self.at % 7 / 7), self.at % 2"
COUNTS = "    def counts(self, batch):  #!\n        return {}\n\n    def loss(self, nets, batch):"
RATE, RIGHT = "return max(least, 1 - samples / total)", "return self.scale * self.right / self.count"
METRICS = 'return super().metrics() | {"right": drivetrain.Mean()}'
SIDES = 'return [{"side": side} for side in nets["model"](batch[0]).argmax(1).tolist()]'
MOVE = "parameter.sub_(state"
SHOW = 'gallery.text("weights", str(next(nets["model"].parameters())))'

RECIPES = [
    written("class typo", BAD, {"task.kind": "mine_seeded:Fitt"}, "did you mean 'Fit'?", at=kind("mine_seeded:Fitt")),
    written("module typo", BAD, {"task.kind": "mine_seded:Fit"}, "no module 'mine_seded'", at=kind("mine_seded:Fit")),
    written(
        "class of a notebook",
        BAD,
        {"task.kind": "__main__:Fit"},
        "this process has no such class",
        at=kind("__main__:Fit"),
    ),
    written("task's argument", BAD, {"task.widht": 3}, "unknown key 'widht'; did you mean 'width'?", at='"widht'),
    written("task's type", BAD, {"task.width": "wide"}, "width: Input should be a valid integer", at='"wide"'),
    written(
        "task is a function of Python's", REFUSED, {"task": {"kind": "os:system"}}, "no task", at=kind("os:system")
    ),
    written(
        "task is a function",
        REFUSED,
        {"task": {"kind": "mine_seeded:falling"}},
        "a class",
        at=kind("mine_seeded:falling"),
    ),
    written("optimizer is a call", REFUSED, {"optimizer.kind": "os:system"}, "is no optimizer", at=kind("os:system")),
    written(
        "optimizer is a function",
        REFUSED,
        {"optimizer.kind": "mine_seeded:Share"},
        "torch.optim",
        at=kind("mine_seeded:Share"),
    ),
    written("optimizer's argument", BAD, {"optimizer.keeep": 3}, "'keeep'; did you mean 'keep'?", at='"keeep'),
    written("optimizer's type", BAD, {"optimizer.keep": "x"}, "keep: Input should be a valid number", at='"x"'),
    written(
        "optimizer without lr",
        BAD,
        {"optimizer": {"kind": "mine_seeded:Descent"}},
        "optimizer: 'lr' is missing",
        at='"optimizer"',
    ),
    written(
        "optimizer's own parameters",
        BAD,
        {"optimizer.params": []},
        "'params' is nothing that a recipe gives",
        at='"params',
    ),
    written("short kind typo", BAD, {"optimizer.kind": "adamww"}, "adamww", "did you mean 'adamw'"),
    written("clip below zero", BAD, {"optimizer.clip": {"value": -1}}, "optimizer.clip"),
    written("clip typo", BAD, {"optimizer.clip": {"valeu": 1}}, "optimizer.clip"),
    written(
        "schedule without factor",
        REFUSED,
        {"schedule": {"kind": "mine_seeded:Hearing"}},
        "has factor",
        at=kind("mine_seeded:Hearing"),
    ),
    written("schedule is a call", REFUSED, {"schedule": {"kind": "os:system"}}, "is no schedule", at=kind("os:system")),
    written("schedule's type", BAD, {"schedule.least": "x"}, "least: Input should be a valid number", at='"x"'),
    written("argument twice", BAD, {"schedule.arguments": {"least": 0.1}}, "schedule.arguments.least: is given twice"),
    written(
        "nested argument", BAD, {"schedule.arguments": {"leest": 0.1}}, "'leest'; did you mean 'least'?", at='"leest'
    ),
    written("plateau of no set", BAD, {"schedule": PLATEAU | {"metric": "pionts/loss"}}, "schedule.metric", "points"),
    written("plateau's mode", BAD, {"schedule": PLATEAU | {"mode": "mix"}}, "schedule.mode"),
    written(
        "best of no set", BAD, {"checkpoint": {"keep_best": {"metric": "pionts/share"}}}, "checkpoint.keep_best.metric"
    ),
    written("callback is a call", REFUSED, {"callbacks.0.kind": "os:system"}, "is no callback", at=kind("os:system")),
    written(
        "callback hears nothing",
        REFUSED,
        {"callbacks.0.kind": "mine_seeded:Flow"},
        "such as on_step",
        at=kind("mine_seeded:Flow"),
    ),
    written("callbacks are no list", BAD, {"callbacks": {"kind": "mine_seeded:Hearing"}}, "callbacks"),
    written("callback's argument", BAD, {"callbacks.0.evry": 2}, "'evry'; did you mean 'every'?", at='"evry'),
    written(
        "sink sends nothing",
        REFUSED,
        {"watch.sinks.0.kind": "mine_seeded:Halving"},
        "has send",
        at=kind("mine_seeded:Halving"),
    ),
    written("sink's argument", BAD, {"watch.sinks.0.paht": "x"}, "'paht'; did you mean 'path'?", at='"paht'),
    written(
        "metric is a function",
        REFUSED,
        {"evaluate.metrics.share.kind": "mine_seeded:flowing"},
        "no metric",
        at=kind("mine_seeded:flowing"),
    ),
    written("metric's type", BAD, {"evaluate.metrics.share.scale": "x"}, "scale: Input should be", at='"x"'),
    written(
        "metric without a kind", BAD, {"evaluate.metrics.share": {"scale": 1}}, "evaluate.metrics.share", "needs a kind"
    ),
    written(
        "metric's name",
        BAD,
        {"evaluate.metrics": {"a/b": {"kind": "mine_seeded:Share"}}},
        "evaluate: metrics",
        "a/b",
        at='"evaluate"',
    ),
    written("source's argument", BAD, {"data.train.sources.0.cuont": 3}, "'cuont'; did you mean 'count'?", at='"cuont'),
    written(
        "sources of one name",
        BAD,
        {"data.train.sources": [{"name": "a", "kind": "mine_seeded:Points"}] * 2},
        "data.train.sources",
    ),
    written(
        "stream's place",
        BAD,
        {"data.train.sources.0": STREAM["data.train.sources.0"] | {"start": 3}},
        "'start' is nothing that a recipe gives",
        at='"start',
    ),
    written(
        "epochs of a stream",
        BAD,
        STREAM | {"budget": {"epochs": 1}},
        "budget.epochs",
        "data.train.sources[0] is a stream",
    ),
    written("workers of a stream", BAD, STREAM | {"data.train.workers": 1}, "data.train.workers", "is a stream"),
    written(
        "validation by a stream",
        BAD,
        {"data.validation.points": {"kind": "mine_seeded:flowing"}},
        "data.validation.points: a stream",
    ),
    written(
        "optimizer of no network",
        BAD,
        {"optimizer": {"modle": {"kind": "mine_seeded:Descent", "lr": 0.1}}},
        "optimizer: given for ['modle']",
        commands=(TRAIN,),
    ),
    written(
        "group of nothing",
        BAD,
        {"optimizer.groups": [{"match": "nothing", "lr": 0.1}]},
        "optimizer.groups: 'nothing'",
        commands=(TRAIN,),
    ),
    written(
        "scores without a time",
        BAD,
        {"schedule": {"kind": "mine_seeded:Halving"}},
        "schedule.every does not say",
        at=kind("mine_seeded:Halving"),
        commands=(TRAIN,),
    ),
    written(
        "scores that nobody reads",
        BAD,
        {"schedule.every": {"steps": 2}},
        "falling takes no scores",
        at=kind("mine_seeded:falling"),
        commands=(TRAIN,),
    ),
    written(
        "plateau of no metric",
        BAD,
        {"schedule": PLATEAU | {"metric": "points/shar"}},
        "schedule.metric: the task has no metric 'shar'",
        commands=(DRY,),
    ),
    written(
        "patience with no metric",
        BAD,
        {"stop": {"patience": {"metric": "points/shar"}}},
        "stop.patience.metric",
        "'shar'",
        commands=(DRY,),
    ),
    written(
        "metric's name twice",
        BAD,
        {"evaluate.metrics.loss": {"kind": "mine_seeded:Share"}},
        "evaluate.metrics.loss: the task has",
        commands=(DRY,),
    ),
    written(
        "weights from nowhere",
        Exit.INPUT_MISSING,
        {"init": {"from": "nowhere"}},
        "init.from: nothing at nowhere",
        commands=(TRAIN,),
    ),
    written(
        "weights from a recipe",
        DATA,
        {"init": {"from": "{folder}/own.json"}},
        "init.from",
        "own.json",
        commands=(TRAIN,),
    ),
]
CODES = [
    coded("import of nothing", BAD, "import drivetrain\n", "import drivetrain\nimport nowhere  #!\n", "No module named 'nowhere'", commands=(CHECK,)),
    coded("syntax", BAD, "def __len__(self):", "def __len__(self:  #!", "SyntaxError", commands=(CHECK,)),
    coded("import raises", BAD, "class Fit(", "drivetrain.nothing()  #!\n\n\nclass Fit(", "AttributeError"),
    coded("stream that has begun", BAD, "class Flow(", "begun = flowing(0)\n\n\nclass Flow(", "a generator that has begun", at=kind("mine_seeded:begun"), commands=(CHECK,), recipe={"data.train.sources.0.kind": "mine_seeded:begun"}),
    coded("no __getitem__", BAD, "def __getitem__", "def getitem", "a class without __getitem__", at=kind("mine_seeded:Points"), commands=(CHECK,)),
    coded("no __len__", BAD, "def __len__", "def len", "a class without __len__", at=kind("mine_seeded:Points"), commands=(CHECK,)),
    coded("__getitem__ takes nothing", BAD, "def __getitem__(self, index)", "def __getitem__(self)", "__getitem__(self) is called with (index)", at=kind("mine_seeded:Points"), commands=(CHECK,)),
    coded("loss takes a batch", BAD, DEF_LOSS, "def loss(self, batch):", "loss(self, batch) is called with (nets, batch)", at=kind("mine_seeded:Fit"), commands=(CHECK,)),
    coded("collate takes nothing", BAD, "def collate(self, samples)", "def collate(self)", "collate(self) is called with (samples)", at=kind("mine_seeded:Fit"), commands=(CHECK,)),
    coded("merge takes nothing", BAD, "def merge(self, state)", "def merge(self)", "merge(self) is called with (state)", at=kind("mine_seeded:Share"), commands=(CHECK,)),
    coded("factor takes one", BAD, "def factor(self, samples: int, total: int, scores: dict)", "def factor(self, samples: int)", "is called with (samples, total)", at=kind("mine_seeded:Halving"), commands=(CHECK,), recipe=HALVING),
    coded("schedule in another order", REFUSED, "def falling(samples: int, total: int,", "def falling(total: int, samples: int,", "whose first parameters are samples, total", at=kind("mine_seeded:falling"), commands=(CHECK,)),
    coded("optimizer extends nothing", REFUSED, "class Descent(torch.optim.Optimizer)", "class Descent", "extends torch.optim.Optimizer", at=kind("mine_seeded:Descent"), commands=(CHECK,)),
    coded("abstract class", BAD, "class Share:\n", "import abc\n\n\nclass Share(abc.ABC):\n    @abc.abstractmethod\n    def more(self): ...\n\n", "is an abstract class: it lacks more", at=kind("mine_seeded:Share"), commands=(CHECK,)),
    coded("event typo", BAD, "def on_step(self, record)", "def on_setp(self, record)", "no event 'on_setp'; did you mean 'on_step'?", at=kind("mine_seeded:Hearing"), commands=(CHECK,)),
    coded("event takes nothing", BAD, "def on_step(self, record)", "def on_step(self)", "on_step(self) is called with (record)", at=kind("mine_seeded:Hearing"), commands=(CHECK,)),
    coded("function of no event", REFUSED, "def falling(", "def heard(record):\n    pass\n\n\ndef falling(", "a function of such a name", at=kind("mine_seeded:heard"), commands=(CHECK,), recipe={"callbacks.0.kind": "mine_seeded:heard"}),
    coded("send takes nothing", BAD, "def send(self, rows)", "def send(self)", "send(self) is called with (rows)", at=kind("mine_seeded:Sending"), commands=(CHECK,)),
    coded("no stream", REFUSED, FLOW, "return index", "is no source", at=kind("mine_seeded:flowing"), recipe=STREAM, commands=(CHECK,)),
    coded("task's constructor", OWN, "self.width = width", "self.width = widht  #!", THEIRS, "name 'widht'"),
    coded("source's constructor", OWN, "self.count = count", "self.count = cuont  #!", THEIRS, "name 'cuont'"),
    coded("optimizer's constructor", BAD, "super().__init__(params,", "self.keep = kepe  #!\n        super().__init__(params,", "its constructor raises NameError"),
    coded("schedule's constructor", BAD, "self.patience = patience", "self.patience = 1 / 0  #!", "its constructor raises ZeroDivisionError", recipe=HALVING),
    coded("callback's constructor", BAD, "self.every = every", "self.every = evry  #!", "its constructor raises NameError"),
    coded("metric's constructor", BAD, "self.scale, self.right, self.count = scale, 0, 0", "self.scale, self.right = scale  #!", "its constructor raises TypeError"),
    coded("no sample", DATA, "return self.count\n", "return 0\n", "mine_seeded:Points has no sample", at=kind("mine_seeded:Points")),
    coded("length in words", OWN, "def __len__(self):\n        return self.count", "def __len__(self):  #!\n        return 'many'", THEIRS, "its length cannot be told: TypeError"),
    coded("length below zero", OWN, "def __len__(self):\n        return self.count", "def __len__(self):  #!\n        return -1", THEIRS, "its length cannot be told: ValueError"),
    coded("length raises", OWN, "return self.count\n", "return self.cuont  #!\n", THEIRS, "no attribute 'cuont'"),
    coded("sample raises", DATA, READ, "return [torch.ones(2), 0][index], 1  #!", "sample 4 cannot be read: IndexError"),
    coded("sample is None", OWN, READ, "return None", THEIRS, "NoneType", at="return torch.stack("),
    coded("samples of two shapes", OWN, READ, "return torch.ones(2 + index % 2), 1", THEIRS, "equal size", at="return torch.stack("),
    coded("collate raises", OWN, "torch.tensor([side for _, side in samples])", "torch.tensor(sides)  #!", THEIRS, "name 'sides'"),
    coded("collate gives nothing", OWN, "    def collate(self, samples):\n        return torch", "    def collate(self, samples):  #!\n        torch", THEIRS, "collate gives a NoneType"),
    coded("counts are no whole numbers", OWN, DEF_LOSS, COUNTS.replace("{}", "{'samples': 1.5}")[4:], THEIRS, "counts gives {'samples': 1.5}"),
    coded("counts are a list", OWN, DEF_LOSS, COUNTS.replace("{}", "[4]")[4:], THEIRS, "counts gives [4]"),
    coded("no networks", OWN, f"{DEF_NETWORKS}\n        {NETWORKS}", f"{DEF_NETWORKS}  #!\n        return {{}}", THEIRS, "networks gives none"),
    coded("one network", OWN, f"{DEF_NETWORKS}\n        {NETWORKS}", f"{DEF_NETWORKS}  #!\n        return nn.Linear(2, 2)", THEIRS, "networks gives Linear("),
    coded("class of a network", OWN, f"{DEF_NETWORKS}\n        {NETWORKS}", f"{DEF_NETWORKS}  #!\n        return {{'model': nn.Tanh}}", THEIRS, "networks gives {'model': <class"),
    coded("no parameters", OWN, f"{DEF_NETWORKS}\n        {NETWORKS}", f"{DEF_NETWORKS}  #!\n        return {{'model': nn.Tanh()}}", THEIRS, "networks gives model: there is no parameter"),
    coded("networks raise", OWN, NETWORKS, "return {'model': nn.Linear(2, self.wdith)}  #!", THEIRS, "no attribute 'wdith'"),
    coded("no loss", BAD, DEF_LOSS, "def los(self, nets, batch):", "task: Fit has no method 'loss'", at=""),
    coded("loss is a float", OWN, LOSS, "return 3.0", THEIRS, "'loss' is no 0-d tensor, but float", at=DEF_LOSS),
    coded("loss is nothing", OWN, LOSS, "pass", THEIRS, "but NoneType", at=DEF_LOSS),
    coded("losses are a dict", OWN, LOSS, "return {'a': points.sum()}", THEIRS, "but dict", at=DEF_LOSS),
    coded("loss by sample", OWN, LOSS, "return nets['model'](points).sum(1)", THEIRS, "but [2]", at=DEF_LOSS),
    coded("loss without a gradient", OWN, LOSS, f"{LOSS}.detach()", THEIRS, "depends on no parameter that trains", at=DEF_LOSS),
    coded("loss raises", OWN, LOSS, "return cross_entropy(nets['modle'](points), sides)  #!", THEIRS, "KeyError: 'modle'"),
    coded("loss of a wrong shape", OWN, LOSS, "return cross_entropy(nets['model'](points.T), sides)  #!", THEIRS, "shapes cannot be multiplied"),
    coded("loss of a wrong type", OWN, LOSS, "return cross_entropy(nets['model'](points.long()), sides)  #!", THEIRS, "same dtype"),
    coded("loss on another device", OWN, LOSS, "return cross_entropy(nets['model'](points).to('meta'), sides)  #!", THEIRS, "device meta"),
    coded("loss is no number", NAN, LOSS, f"{LOSS} * float('nan')", "loss nan", "step 1, sample_ids [", at=""),
    coded("loss over an unknown unit", OWN, LOSS, "return drivetrain.Losses(a=(points.sum(), 'tokens'))", THEIRS, "'a' is a sum over 'tokens', and counts() gives samples", at=DEF_LOSS),
    coded("losses without units", OWN, LOSS, "return drivetrain.Losses(a=points.sum())  #!", THEIRS, "Losses(a=...) takes a tuple"),
    coded("update of no network", OWN, 'step.minimize("model", self.loss)', 'step.minimize("modle", self.loss)  #!', THEIRS, "no network 'modle'"),
    coded("update gives no function", OWN, 'step.minimize("model", self.loss)', 'step.minimize("model", 3)  #!', THEIRS, "was given a int"),
    coded("update moves nobody", OWN, "    def update(self, step):\n        step.minimize(", "    def update(self, step):  #!\n        print(", THEIRS, "calls no step.minimize in step 1"),
    coded("update raises", OWN, "step.minimize(", "step.minimise(", THEIRS, "'minimise'", at="step.minimise"),
    coded("metrics are a list", OWN, f"def metrics(self):\n        {METRICS}", "def metrics(self):  #!\n        return []", THEIRS, "metrics gives a list"),
    coded("metric is a class", OWN, f"def metrics(self):\n        {METRICS}", "def metrics(self):  #!\n        return {'right': drivetrain.Mean}", THEIRS, "'right' is the class Mean"),
    coded("evaluate raises", OWN, 'metrics["right"].add', 'metrics["write"].add', THEIRS, "KeyError: 'write'", at='metrics["write"]'),
    coded("evaluate returns nothing", BAD, "        return said, sides\n", "", "returns nothing", "evaluate.metrics.share", at="def evaluate("),
    coded("evaluate returns no tuple", BAD, "        return said, sides\n", "        return said\n", "a Tensor and no tuple", at="def evaluate("),
    coded("metric's update raises", BAD, "self.right += int((said == sides).sum())", "self.right += int(sides.smu())  #!", "evaluate.metrics.share", "'smu'"),
    coded("metric's value raises", OWN, RIGHT, "return self.right / 0  #!", THEIRS, "ZeroDivisionError"),
    coded("metric's value in words", BAD, RIGHT, "return 'good'", "the metric 'share' comes to a str", at=""),
    coded("metric cannot be merged", OWN, "self.right += state[0]", "self.right += state[7]  #!", THEIRS, "IndexError", recipe={"exact": True}),
    coded("metric's state is no data", BAD, "return [self.right, self.count]", "return [self]", "metrics cannot be merged", at="", recipe={"exact": True}),
    coded("patience with no number", NAN, RIGHT, "return float('nan')", "stop.patience: points/share was not a number", "step 2", at="", recipe={"stop": {"patience": {"metric": "points/share", "evaluations": 1}}}),
    coded("show raises", OWN, SHOW, "gallery.txt('weights')  #!", THEIRS, "'txt'", commands=(DRY,)),
    coded("picture of words", OWN, SHOW, "gallery.picture('weights', 'dots')  #!", THEIRS, "gallery.picture('weights') takes", commands=(DRY,)),
    coded("predict raises", OWN, SIDES, "return [{'side': sid}]  #!", THEIRS, "name 'sid'", commands=(FIRST, PREDICT)),
    coded("predict of too few", OWN, SIDES, f"{SIDES}[1:]", THEIRS, "Fit.predict: 3 rows for 4 samples", at="def predict(", commands=(FIRST, PREDICT)),
    coded("predict gives no dicts", OWN, SIDES, 'return nets["model"](batch[0]).argmax(1)', THEIRS, "Fit.predict: a row is", at="def predict(", commands=(FIRST, PREDICT)),
    coded("no predict", Exit.BAD_COMMAND, "def predict(", "def said(", "run: the task Fit has no predict", at="", commands=(FIRST, PREDICT)),
    coded("generate raises", OWN, 'return {"text": prompt}', "return {'text': prmpt}  #!", THEIRS, "name 'prmpt'", commands=(FIRST, GENERATE)),
    coded("generate gives no dict", OWN, 'return {"text": prompt}', "return prompt", THEIRS, "Fit.generate gives 'a'", at="def generate(", commands=(FIRST, GENERATE)),
    coded("optimizer's step raises", OWN, MOVE, f"group['rl']  #!\n                {MOVE}", THEIRS, "KeyError: 'rl'"),
    coded("optimizer's step of a wrong shape", OWN, MOVE, f"parameter.add_(torch.ones(7, 7))  #!\n                {MOVE}", THEIRS, "must match the size"),
    coded("optimizer makes no numbers", NAN, MOVE, f"parameter.mul_(float('nan'))\n                {MOVE}", "step 2, sample_ids [", at=""),
    coded("optimizer keeps a list", BAD, MOVE, f"state['seen'] = [1]\n                {MOVE}", "Descent keeps 'seen', a list, for optimizers/model/0.weight", at=""),
    coded("optimizer wants a closure", BAD, "def step(self, closure=None)", "def step(self, closure)", "needs a closure", at=kind("mine_seeded:Descent")),
    coded("optimizer begins without its base", BAD, "        super().__init__(params,", "        dict(params=params) or (", "does not call super().__init__", at=kind("mine_seeded:Descent")),
    coded("optimizer takes no rate", BAD, "lr: float = 0.1, ", "", "takes no lr", at=kind("mine_seeded:Descent")),
    coded("factor is no number", BAD, RATE, "return float('nan')", "gives nan at 4 samples", at=kind("mine_seeded:falling")),
    coded("factor below zero", BAD, RATE, "return 0.5 - samples / total", "gives -0.25 at 12 samples", at=kind("mine_seeded:falling")),
    coded("factor raises", OWN, RATE, "return samples / 0  #!", THEIRS, "ZeroDivisionError"),
    coded("factor of an unknown set", OWN, 'return 0.5 ** len(scores["points/loss"])', "return len(scores['pionts/loss'])  #!", THEIRS, "KeyError: 'pionts/loss'", recipe=HALVING),
    coded("callback raises", OWN, "self.last = record.step", "self.last = record.stpe  #!", THEIRS, "no attribute 'stpe'", "step 1"),
    coded("callback ends the process", OWN, "self.last = record.step", "raise SystemExit(0)  #!", THEIRS, "SystemExit: 0"),
    coded("callback changes a network", BAD, "self.seen = sorted(networks)", "networks['model'].eval()[0].weight.data.zero_()", "has changed a network", at="def on_evaluation("),
    coded("sink's constructor", Exit.DONE, "self.path = path", "self.path = pth  #!", "its constructor raises NameError", "Sending-0 lacks the end"),
    coded("sink raises", Exit.DONE, "with open(self.path,", "with open(self.pth,", "no attribute 'pth'", "Sending-0 lacks the end", at="open(self.pth"),
    coded("stream without a sample", DATA, "range(start, count)", "range(start, start)", "mine_seeded:flowing has no sample 0", at="", recipe=STREAM),
    coded("stream of None", OWN, FLOW, "yield None", THEIRS, "NoneType", at="return torch.stack(", recipe=STREAM),
    coded("stream of two shapes", OWN, FLOW, "yield torch.ones(2 + index % 2), 1", THEIRS, "equal size", at="return torch.stack(", recipe=STREAM),
    coded("StopIteration within a stream", DATA, FLOW, "yield next(iter([]))  #!", "sample 0 cannot be read", "raised StopIteration", recipe=STREAM),
    coded("stream raises", DATA, FLOW, "yield torch.full((2,), 1 / (index - 5)), 1  #!", "sample 5 cannot be read", recipe=STREAM),
    coded("stream's state is no data", BAD, 'return {"at": self.at}', 'return {"at": torch.tensor(self.at)}', "its state_dict is no JSON data", at="", recipe=STATEFUL),
    coded("stream's state raises", OWN, 'return {"at": self.at}', "return {'at': self.ta}  #!", THEIRS, "no attribute 'ta'", recipe=STATEFUL),
    coded("stream takes its state back wrongly", OWN, 'self.at = state["at"]', "self.at = state['ta']  #!", THEIRS, "KeyError: 'ta'", recipe=STATEFUL | {"batch": {"size": 64}}, commands=(f"{TRAIN} --steps 2", TRAIN)),
    coded("stream iterates over nothing", OWN, f"    def __iter__(self):\n        while True:\n            self.at += 1\n            {TOLD}\n", "    def __iter__(self):  #!\n        pass\n", THEIRS, "mine_seeded:Flow: iter() returned non-iterator", recipe=STATEFUL),
]  # fmt: skip


def changed(tree, key, value):
    """Set what stands at a dotted key."""
    *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    for part in parents:
        tree = tree.setdefault(part, {}) if isinstance(tree, dict) else tree[part]
    tree[last] = value


def line_of(text, words):
    """The number of the first line that has the words."""
    return next((number for number, line in enumerate(text.splitlines(), 1) if words in line), None)


@pytest.fixture
def seeded(place):
    """Writes the code and the recipe with a mistake, and gives the place that a message has to name."""

    def seed(case):
        # A sink of the test before may have been so slow that it was imported after that one's end.
        sys.modules.pop("mine_seeded", None)
        code = CODE.read_text()
        assert case.old in code, "the mistake changes the code that works"
        code = code.replace(case.old, case.new, 1) if case.old else code
        recipe = copy.deepcopy(RECIPE)
        for key, value in (case.recipe or {}).items():
            changed(recipe, key, value)
        told = json.dumps(recipe, indent=1).replace("{folder}", str(place.folder))
        (place.folder / "mine_seeded.py").write_text(code)
        (place.folder / "own.json").write_text(told)
        if not case.at:
            return ""
        if case.at.startswith('"'):
            return f"own.json:{line_of(told, case.at)}:"
        return f"{place.folder / 'mine_seeded.py'}:{line_of(code, case.at)}:"

    yield seed
    sys.modules.pop("mine_seeded", None)


def test_what_the_mistakes_are_seeded_into_works(place, seeded):
    seeded(Seeded("none", Exit.DONE, ()))
    for command in (CHECK, TRAIN, PREDICT, GENERATE):
        assert place(*command.split()) == Exit.DONE, place.err


@pytest.mark.parametrize("case", [*RECIPES, *CODES], ids=lambda case: case.name)
def test_a_seeded_mistake_is_named_with_its_place(place, seeded, case, monkeypatch):
    monkeypatch.setattr(trackers, "PATIENCE", 3.0)  # seconds that a broken sink holds the end of a command
    where = seeded(case)
    *before, last = case.commands
    for command in before:
        assert place(*command.split()) == Exit.STOPPED, place.err
    code = place(*last.split())
    said = place.err.splitlines()[-1] if place.err else place.out
    missing = [words for words in (*case.words, where) if words not in said]
    assert (code, missing) == (case.code, []), said


@pytest.fixture
def module(place, monkeypatch):
    """The code, imported from where Python looks for modules."""
    (place.folder / "mine_seeded.py").write_text(CODE.read_text())
    monkeypatch.syspath_prepend(str(place.folder))
    mine_seeded = importlib.import_module("mine_seeded")

    yield mine_seeded
    sys.modules.pop("mine_seeded", None)


def changed_since(own):
    task = own.Fit(width=3)
    task.width = 5
    return task


def nowhere(base):
    """An object of a class that nobody can import."""

    class Local(base): ...

    return Local()


class Quiet:
    """Neither sends nor hears."""


SOURCES = "data.train.sources"
GIVEN = [
    # name, what is given by dotted key, whether the run has a folder, words
    ("key typo", {"budgt": {"steps": 1}}, False, "budgt: unknown key 'budgt'; did you mean 'budget'?"),
    ("optimizer's object", {"optimizer": lambda own: own.Descent([own.torch.zeros(1)])}, False, "optimizer: Descent is an object"),
    ("optimizer without lr", {"optimizer": lambda own: own.Descent}, False, "optimizer: 'lr' is missing"),
    ("argument typo", {"task": lambda own: {"kind": own.Fit, "widht": 3}}, False, "task.widht: mine_seeded:Fit: unknown"),
    ("argument's type", {"task": lambda own: {"kind": own.Fit, "width": "w"}}, False, "task.width: mine_seeded:Fit: width"),
    ("class is no source", {SOURCES: lambda own: [own.Sending]}, False, f"{SOURCES}[0]: mine_seeded:Sending is no source"),
    ("no tensors", {SOURCES: lambda own: [own.torch.utils.data.TensorDataset]}, False, f"{SOURCES}[0]: torch.utils.data"),
    ("task is a function", {"task": lambda own: own.falling}, False, "task: mine_seeded:falling is no task"),
    ("task is a source", {"task": lambda own: own.Points()}, False, "task: is no task, but a Points"),
    ("source has begun", {SOURCES: lambda own: [own.flowing(0)]}, False, f"{SOURCES}[0]: is no source, but a generator"),
    ("class for a number", {"batch.size": lambda own: own.Fit}, False, "batch.size: is no plain data, but the class Fit"),
    ("task changed", {"task": changed_since}, False, "task: mine_seeded:Fit has width = 5, and 3 where it is made"),
    ("local class", {"task": lambda own: nowhere(own.Fit)}, False, "task: Local is an object that no recipe can name"),
    ("lambda", {"schedule": lambda own: lambda samples, total: 1.0}, False, "schedule: _lambda_ is an object that no"),
    ("lambda of another order", {"schedule": lambda own: lambda total, samples: 1.0}, True, "schedule: ", "is no schedule"),
    ("partial typo", {"schedule": lambda own: partial(own.falling, leest=1)}, False, "leest: mine_seeded:falling: unknown key"),
    ("callback is deaf", {"callbacks": lambda own: [Quiet()]}, False, "callbacks[0]: is no callback, but a Quiet"),
    ("callback is a lambda", {"callbacks": lambda own: [lambda record: None]}, False, "callbacks[0]: ", "is no callback"),
    ("sink is dumb", {"watch.sinks": lambda own: [Quiet()]}, False, "watch.sinks[0]: is no sink, but a Quiet"),
    ("metric is none", {"evaluate.metrics.share": lambda own: Quiet()}, False, "evaluate.metrics.share: is no metric, but a Quiet"),
    ("two processes", {"task": lambda own: nowhere(own.Fit), "launch.processes": 2}, True, "launch.processes", "Local"),
    ("workers", {SOURCES: lambda own: [nowhere(own.Points)], "data.train.workers": 1}, True, "data.train.workers", "Local"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "folder", "words"), [(*case[:3], case[3:]) for case in GIVEN])
def test_a_mistake_in_what_python_gives_is_named_with_its_place(module, name, changes, folder, words):
    recipe = copy.deepcopy(RECIPE)
    for key, value in changes.items():
        changed(recipe, key, value(module) if callable(value) else value)
    with pytest.raises(Failure) as caught:
        drivetrain.train(recipe, run="run" if folder else None, progress=False)
    said = str(caught.value)
    function = name == "task is a function"  # that could be `os.system`
    assert caught.value.outcome.code is (REFUSED if function else BAD)
    assert [each for each in words if each not in said] == [], said


def test_a_command_on_a_run_of_an_object_names_it_and_says_what_to_call(place, module):
    drivetrain.train(RECIPE | {"task": nowhere(module.Fit)}, run="run", progress=False)
    for command in ("train run", "evaluate run", PREDICT, "export run --to exported"):
        assert place(*command.split()) == BAD
        assert "Local" in place.err.splitlines()[-1]
        assert "drivetrain.train" in place.err.splitlines()[-1]
