"""The task of `own_tables` as TorchRec can look its tables up, and what it cannot do."""

import torch
from torch import nn

import own_tables
from drivetrain.engine.tables.module import Embeddings, Ids, Lookup, Table


class Few(own_tables.Clicks):
    """A step's samples and a lane's, which one rank reads."""

    def __len__(self):
        return 20


class Pooled(nn.Module):
    """Three tables of two widths; one is shared by features that are summed, weighted, and averaged."""

    def __init__(self):
        super().__init__()
        tables = [
            Table("users", own_tables.USERS, 8),
            Table("items", own_tables.ITEMS, 8),
            Table("words", own_tables.WORDS, 4, bound=0.5),
        ]
        lookups = [
            Lookup("words", "words", "sum"),
            Lookup("user", "users"),
            Lookup("mean", "words", "mean"),
            Lookup("item", "items"),
            Lookup("again", "users"),
        ]
        self.embeddings = Embeddings(tables, lookups)
        self.head = nn.Sequential(nn.Linear(3 * 8 + 2 * 4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch):
        found = self.embeddings(*looked_up(batch))
        return self.head(torch.cat([found[name] for name in found], 1)).squeeze(1)


def looked_up(batch):
    ids = {name: batch[name] for name in ("user", "item", "words")}
    return Ids(ids | {"mean": batch["words"], "again": batch["item"]}, {"words": batch["weights"]})


class Likes(own_tables.Likes):
    """Binary cross-entropy."""

    def networks(self):
        return {"model": Pooled()}

    def lookups(self, batch):
        return {"model": looked_up(batch)}


class Poisoned(Likes, own_tables.Poisoned):
    """The gradient of a single table's rows is no number in step 3, on the ranks that read some user below 3."""


class Rivals(Likes, own_tables.Rivals):
    """Two networks, each with tables, of which the second moves every other step, by what the first has said."""

    def networks(self):
        return {"one": Pooled(), "other": Pooled()}

    def lookups(self, batch):
        return dict.fromkeys(("one", "other"), looked_up(batch))


def recipe(task="Likes", backend="torchrec", **sections):
    """A recipe of 12 steps, with a commit and scores after every sixth."""
    rows = {"optimizer": {"kind": "rowwise_adagrad", "lr": 0.1}, **sections.pop("embeddings", {}), "backend": backend}
    sections = {"optimizer": {"kind": "adamw", "lr": 1e-2, "clip": None}, **sections}
    common = {"budget": {"steps": 12}, "evaluate": {"every": {"steps": 6}}, "checkpoint": {"every": {"steps": 6}}}
    found = own_tables.recipe(task, embeddings=rows, **common | sections)
    return found | {"task": {"kind": f"own_torchrec:{task}"}}
