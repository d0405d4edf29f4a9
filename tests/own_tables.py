"""A small task with embedding tables of several widths and ways to look them up, and the same on torch's own layers."""

import torch
from torch import nn

from drivetrain import Admit, Amount, Evict, Keyed, Losses, Task
from drivetrain.engine.tables.module import Embeddings, Ids, Lookup, Table
from drivetrain.loop.metrics import LossMeans, Mean
from drivetrain.tasks.ranking.pareto import ParetoWeights

USERS, ITEMS, WORDS = 40, 23, 9
ODD = 252  # a user of one sample, the one at position 124


class Clicks:
    """Who has seen what: an id, another, up to three words of it (-1: none) with weights, and whether it was liked."""

    def __len__(self):
        return 500

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        user = torch.randint(USERS, (), generator=draw)
        item = (torch.rand((), generator=draw) ** 3 * ITEMS).long()  # skewed
        words = torch.randint(-1, WORDS, (3,), generator=draw)
        weights = torch.rand(3, generator=draw)
        return {"user": user, "item": item, "words": words, "weights": weights, "liked": ((user + item) % 2).float()}


class Visits(Clicks):
    """The same of more users and items, most of which are seen once or twice; they have keys of up to 63 bits."""

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        user = (torch.rand((), generator=draw) ** 3 * 600).long()
        item = (torch.rand((), generator=draw) ** 2 * 200).long()
        return super().__getitem__(index) | {"user": key_of(user), "item": key_of(item), "liked": (user % 2).float()}


def key_of(number):
    """A key as a hash would be."""
    return (number + 1) * 0x5851F42D4C957F2D & (1 << 63) - 1


class Liked(nn.Module):
    """Two tables of one width, one of them shared by two features, and one of another width."""

    def __init__(self, users=None, items=None):
        super().__init__()
        users, items = users or Table("users", USERS, 8), items or Table("items", ITEMS, 8)
        tables = [users, items, Table("words", WORDS, 4, bound=0.5)]
        lookups = [
            Lookup("user", "users"),
            Lookup("item", "items"),
            Lookup("words", "words", "sum"),
            Lookup("mean", "words", "mean"),
            Lookup("each", "words", "none"),
        ]
        self.embeddings = Embeddings(tables, lookups)
        self.head = nn.Sequential(nn.Linear(8 + 8 + 4 + 4 + 12, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch):
        found = self.embeddings(*looked_up(batch))
        return self.head(torch.cat([found[name].flatten(1) for name in found], 1)).squeeze(1)


def looked_up(batch):
    words = {"words": batch["words"], "mean": batch["words"], "each": batch["words"]}
    return Ids({"user": batch["user"], "item": batch["item"], **words}, {"words": batch["weights"]})


class Likes(Task):
    """Binary cross-entropy."""

    def networks(self):
        return {"model": Liked()}

    def lookups(self, batch):
        return {"model": looked_up(batch)}

    def loss(self, nets, batch):
        return nn.functional.binary_cross_entropy_with_logits(nets["model"](batch), batch["liked"])

    def metrics(self):
        return {"loss": Mean()}


class Torn(Likes):
    """Two losses of each sample, which weigh as their gradients say."""

    rule = ParetoWeights(("liked", "known"), (0.1, 0.0))

    def update(self, step):
        step.minimize("model", self.loss, self.rule)

    def loss(self, nets, batch):
        said = nets["model"](batch)
        liked = nn.functional.binary_cross_entropy_with_logits(said, batch["liked"], reduction="sum")
        known = 1.0 - batch["liked"] + (batch["item"] < 3).float()
        return Losses(liked=(liked,), known=((said - known).square().sum() / 8,))

    def metrics(self):
        return LossMeans(loss=Mean())


class PlainTorn(Torn):
    """The same numbers, of which tables are moved as any parameters are."""

    def networks(self):
        network = Liked()
        network.embeddings.draw(0)
        network.embeddings = Whole(network.embeddings)
        return {"model": network}


class Whole(nn.Module):
    """Tables that nobody takes for such."""

    def __init__(self, embeddings):
        super().__init__()
        self.lookups, self.tables = embeddings.lookups, embeddings.tables
        for name, parameter in embeddings.named_parameters():
            self.register_parameter(name, parameter)

    forward = Embeddings.forward
    engine = None


class KeyedLikes(Likes):
    """Users and items are keys, of which new ones come all the time; words are rows. Step 3 is not finite."""

    step = 0

    def networks(self):
        admit, every = Admit(count=2), Amount(steps=5)
        users = Keyed(admit=admit, evict=Evict(age=Amount(steps=9), least="count", every=every))
        items = Keyed(evict=Evict(least="recent", every=every))
        return {"model": Liked(Table("users", 200, 8, keyed=users), Table("items", 170, 8, keyed=items))}

    def update(self, step):
        self.step = step.index
        super().update(step)

    def loss(self, nets, batch):
        loss = super().loss(nets, batch)
        return loss * float("nan") if self.step == 3 else loss


class Odd(KeyedLikes):
    """A single sample is not finite."""

    def loss(self, nets, batch):
        loss = Likes.loss(self, nets, batch)
        return loss * float("nan") if bool((batch["user"] == key_of(ODD)).any()) else loss


class OddTorn(Odd):
    """The same by two losses that weigh as their gradients say; of one the sample is not finite."""

    update, rule, metrics = Torn.update, Torn.rule, Torn.metrics

    def loss(self, nets, batch):
        said = nets["model"](batch)
        liked = nn.functional.binary_cross_entropy_with_logits(said, batch["liked"], reduction="sum")
        known = (said - 1.0).square().sum() / 8
        odd = bool((batch["user"] == key_of(ODD)).any())
        return Losses(liked=(liked,), known=(known * float("nan") if odd else known,))


class Crowded(KeyedLikes):
    """Nobody has to go."""

    def networks(self):
        return {"model": Liked(Table("users", 128, 8, keyed=Keyed()), Table("items", 6000, 8, keyed=Keyed()))}


class Negative(KeyedLikes):
    """It asks for what is no key."""

    def lookups(self, batch):
        ids, weights = looked_up(batch)
        return {"model": Ids({**ids, "user": -ids["user"]}, weights)}


class Rivals(Likes):
    """Two networks, each with tables, of which the second moves every other step, by what the first has said."""

    def networks(self):
        return {"one": Liked(), "other": Liked()}

    def lookups(self, batch):
        return dict.fromkeys(("one", "other"), looked_up(batch))

    def update(self, step):
        step.minimize("one", self.loss)
        step.minimize("other", self.against)

    def loss(self, nets, batch):
        return nn.functional.binary_cross_entropy_with_logits(nets["one"](batch), batch["liked"])

    def against(self, nets, batch):
        return (nets["other"](batch) - nets["one"](batch)).square().mean()


class Beyond(Likes):
    """It asks for a row that is not there."""

    def lookups(self, batch):
        ids, weights = looked_up(batch)
        return {"model": Ids({**ids, "user": ids["user"] + USERS}, weights)}


class Factors(nn.Module):
    """Users and items, and nothing else: their product says how much one likes the other."""

    def __init__(self):
        super().__init__()
        tables = [Table("users", USERS, 8, bound=0.5), Table("items", ITEMS, 8, bound=0.5)]
        self.embeddings = Embeddings(tables, [Lookup("user", "users"), Lookup("item", "items")])

    def forward(self, ids):
        found = self.embeddings(ids)
        return (found["user"] * found["item"]).sum(1)


class Bare(Likes):
    """Matrix factorization: a network of tables alone."""

    def networks(self):
        return {"model": Factors()}

    def lookups(self, batch):
        return {"model": Ids({"user": batch["user"], "item": batch["item"]})}

    def loss(self, nets, batch):
        said = nets["model"]({"user": batch["user"], "item": batch["item"]})
        return nn.functional.binary_cross_entropy_with_logits(said, batch["liked"])


class BareTorn(Bare):
    """The same by two losses that weigh as their gradients say."""

    update, rule, metrics = Torn.update, Torn.rule, Torn.metrics

    def loss(self, nets, batch):
        said = nets["model"]({"user": batch["user"], "item": batch["item"]})
        liked = nn.functional.binary_cross_entropy_with_logits(said, batch["liked"], reduction="sum")
        return Losses(liked=(liked,), known=((said - 1.0).square().sum() / 8,))


class Poisoned(Likes):
    """The gradient of a single table's rows is no number in step 3, on the ranks that read some user below 3."""

    def update(self, step):
        self.step = step.index
        super().update(step)

    def loss(self, nets, batch):
        loss = super().loss(nets, batch)
        if self.step == 3 and bool((batch["user"] < 3).any()):
            loss = loss * float("nan")
        return loss


def recipe(task="Likes", **sections):
    """The recipe, of 30 steps with a commit after every tenth."""
    return {
        "name": "likes",
        "task": {"kind": f"own_tables:{task}"},
        "data": {
            "train": {"sources": [{"kind": "own_tables:Clicks"}]},
            "validation": {"likes": {"kind": "own_tables:Clicks"}},
        },
        "lanes": 4,
        "batch": {"size": 16, "micro": 4},
        "budget": {"steps": 30},
        "optimizer": {"kind": "adamw", "lr": 1e-2},
        "embeddings": {"optimizer": {"kind": "adagrad", "lr": 0.1}},
        "evaluate": {"every": {"steps": 10}},
        "checkpoint": {"every": {"steps": 10}},
        "launch": {"threads": 1},
        **sections,
    }


def keyed_recipe(task="KeyedLikes", **sections):
    """The same with keyed tables."""
    data = {
        "train": {"sources": [{"kind": "own_tables:Visits"}]},
        "validation": {"likes": {"kind": "own_tables:Visits"}},
    }
    return recipe(task, data=data, **{"guard": {"nonfinite": "skip"}, **sections})


class Numbers(nn.Module):
    """A model of a ranking without any table."""

    def __init__(self, shapes):
        super().__init__()
        self.out = nn.Linear(shapes.width, 1)

    def forward(self, inputs):
        return {"click": self.out(torch.stack(list(inputs.numbers.values()), 1)).squeeze(1)}
