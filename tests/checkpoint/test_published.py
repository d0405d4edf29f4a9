"""Weights that were exported, or that others publish, as the beginning of a run."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import drivetrain
from drivetrain.checkpoint.export import tied_names
from drivetrain.checkpoint.initial import load_initial
from drivetrain.checkpoint.published import read_published
from drivetrain.checkpoint.recipe import Init
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def save(path, network, dtype=torch.float32):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, pieces_of({name: tensor.to(dtype) for name, tensor in network.state_dict().items()}))


def init(path, **settings):
    return Init(from_=str(path), **settings)


def same(one, other):
    return all(torch.equal(one.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


def test_a_folder_of_one_network_in_one_file_or_several(tmp_path):
    whole = net(1)
    save(tmp_path / "one" / "model.safetensors", whole)
    (tmp_path / "one" / "config.json").write_text("{}")
    tensors = whole.state_dict()
    (tmp_path / "parts").mkdir()
    for part, names in (("00001-of-00002", list(tensors)[:2]), ("00002-of-00002", list(tensors)[2:])):
        kept = pieces_of({name: tensors[name] for name in names})
        write_tensors(tmp_path / "parts" / f"model-{part}.safetensors", kept)
    (tmp_path / "parts" / "consolidated.safetensors").write_bytes(b"the same in another form")
    digests = set()
    for folder in ("one", "parts"):
        mine = net(2)
        report = load_initial(init(tmp_path / folder), {"model": mine})
        assert same(mine, whole)
        assert (len(report.loaded), report.source) == (4, folder)
        digests.add(report.digest)
    assert len(digests) == 2


def test_a_folder_of_several_networks_and_one_of_them(tmp_path):
    for name, seed in (("generator", 1), ("critic", 2)):
        save(tmp_path / name / "model.safetensors", net(seed))
    networks = {"generator": net(7), "critic": net(8)}
    load_initial(init(tmp_path), networks)
    assert same(networks["generator"], net(1))
    assert same(networks["critic"], net(2))
    networks = {"generator": net(7), "critic": net(8)}
    load_initial(init(tmp_path, part="critic"), networks)
    assert same(networks["generator"], net(7))
    assert same(networks["critic"], net(2))


def test_links_of_a_hubs_cache_are_followed_and_halves_are_widened(tmp_path):
    whole = net(1).half().float()  # what 16 bits can hold
    save(tmp_path / "blobs" / "0123", whole, torch.float16)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    mine = net(2)
    load_initial(init(tmp_path / "snapshot"), {"model": mine})
    assert same(mine, whole)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it there")
def test_a_part_of_what_is_published_takes_the_memory_of_the_part(tmp_path):
    weight = torch.ones(16 << 20, 2, dtype=torch.float16)  # 64 MB
    write_tensors(tmp_path / "large.safetensors", pieces_of({"weight": weight}))
    before = own_memory()
    published = read_published(tmp_path / "large.safetensors", ["model"], {})
    assert published.shapes["model/weight"].dtype is torch.float32
    box = Box((16 << 20, 2), (5, 0), (1 << 20, 2))
    part = published.read({"model/weight": box})["model/weight"]
    assert part.equal(torch.ones(1 << 20, 2))
    assert own_memory() - before < 32 << 20  # of 128 MB that the whole would take


def test_a_file_that_is_written_while_it_is_read_is_65(tmp_path):
    save(tmp_path / "w.safetensors", net(1))
    published = read_published(tmp_path / "w.safetensors", ["model"], {})
    boxes = {name: Box.of_whole(tensor.shape) for name, tensor in published.shapes.items()}
    assert len(published.read(boxes)) == 4
    data = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(data[:-1] + b"!")
    with pytest.raises(Failure, match="was changed while it was read") as caught:
        published.read(boxes)
    assert caught.value.outcome.code is Exit.BAD_DATA


def own_memory():
    """Bytes that this process shares with no file."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("pytorch_model.bin", Exit.SECURITY, "pickled weights only"),
        ("adapter_model.safetensors", Exit.BAD_RECIPE, "adapters"),
        ("config.json", Exit.INPUT_MISSING, "no weights in"),
        ("model.safetensors", Exit.BAD_DATA, "is damaged"),
    ],
)
def test_what_has_no_weights_is_told_as_what_it_is(tmp_path, name, code, words):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / name).write_bytes(b"not weights")
    with pytest.raises(Failure, match=words) as caught:
        load_initial(init(tmp_path / "there"), {"model": net()})
    assert caught.value.outcome.code is code


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_in_hugging_faces_layout_reads_back(tmp_path, tied):
    settings = Llama(width=16, depth=2, heads=2, context=8, vocabulary=20, tied=tied)
    task = LanguageModelTask(LanguageModel(model=settings))
    torch.manual_seed(1)
    whole = task.networks()["model"]
    tensors = task.layout("model")(whole.state_dict()).tensors
    tensors = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    write_tensors(tmp_path / "model.safetensors", pieces_of(tensors))
    torch.manual_seed(2)
    mine = task.networks()["model"]
    load_initial(init(tmp_path), {"model": mine}, {"model": task.published_layout("model")})
    assert same(mine, whole)
    own = tmp_path / "own.safetensors"
    write_tensors(
        own, pieces_of({name: tensor for name, tensor in whole.state_dict().items() if name != "head.weight"})
    )
    if tied:
        load_initial(init(own), {"model": mine}, {"model": task.published_layout("model")})


def test_tied_weights_have_their_first_name():
    network = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)})
    network["two"].weight = network["one"].weight
    assert tied_names(network) == {"two.weight": "one.weight"}
    assert tied_names(net()) == {}


def test_an_export_begins_a_run_and_is_scored_by_itself(tmp_path, tiny, monkeypatch, capsys):
    """From the command line, in this process."""
    from drivetrain.cli.main import run as command

    monkeypatch.chdir(tmp_path)
    tiny["task"]["model"]["tied"] = True
    (tmp_path / "tiny.json").write_text(json.dumps(tiny))
    assert command(["train", "tiny.json", "--run", "first", "--steps", "1", "launch.kind=local"]) == Exit.STOPPED
    assert command(["export", "first", "--to", "exported"]) == Exit.DONE
    begun = {**tiny, "init": {"from": "exported"}}
    (tmp_path / "begun.json").write_text(json.dumps(begun))
    assert command(["train", "begun.json", "--run", "second", "--steps", "1"]) == Exit.STOPPED
    (line,) = [line for line in (tmp_path / "second" / "ledger.jsonl").read_text().splitlines() if '"initial"' in line]
    assert json.loads(line)["fresh"] == []
    whole = drivetrain.evaluate("first").metrics
    assert drivetrain.evaluate("tiny.json", init="exported").metrics == whole
    assert drivetrain.evaluate("begun.json").metrics == whole
    for arguments, words in (
        (("tiny.json",), "no weights to score"),
        (("first", "--init", "exported"), "is a run, which has weights"),
        (("begun.json", "--commit", "1"), "which has no commits"),
    ):
        assert command(["evaluate", *arguments]) == Exit.BAD_COMMAND
        assert words in capsys.readouterr().err


TIED = """
from torch import nn
from drivetrain import Task

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, tokens):
        return self.head(self.embed(tokens))

class Copying(Task):
    def networks(self):
        return {"model": Tied()}
    def loss(self, nets, batch):
        return nn.functional.cross_entropy(nets["model"](batch["x"]), batch["x"])
"""


def test_tied_weights_of_ones_own_load_in_plain_pytorch_as_the_note_says(tmp_path, monkeypatch, capsys):
    from safetensors.torch import load_model

    from drivetrain.cli.main import run as command

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tied_of_this_test.py").write_text(TIED)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"x": number}) + "\n" for number in range(9)))
    recipe = {
        "name": "tied",
        "task": {"kind": "tied_of_this_test:Copying"},
        "data": {"train": {"sources": [{"kind": "jsonl", "path": "rows.jsonl"}]}},
        "batch": {"size": 3},
        "budget": {"steps": 2},
    }
    (tmp_path / "tied.json").write_text(json.dumps(recipe))
    drivetrain.train("tied.json", run="run", progress=False)
    assert command(["export", "run", "--to", "to"]) == Exit.DONE
    told = capsys.readouterr().out
    assert "head.weight is tied to embed.weight, and written once: safetensors.torch.load_model ties it again" in told
    fresh = sys.modules["tied_of_this_test"].Tied()
    assert load_model(fresh, "to/model.safetensors") == (set(), [])
    assert same(fresh, drivetrain.Result.load("run").networks()["model"])
    assert fresh.head.weight is fresh.embed.weight
    sys.modules.pop("tied_of_this_test")
