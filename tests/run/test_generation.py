"""Text that a run goes on with: by the rules of drawing, and for each prompt alone."""

import io
import json
import sys

import pytest
import torch

import drivetrain
from conftest import tiny_recipe
from drivetrain.cli.main import run as command
from drivetrain.data.inputs import find_inputs
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.loop.sampling import Sampling
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.language_model.sampling import likeliest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run of a tiny model of bytes."""
    folder = tmp_path_factory.mktemp("generation")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "3.txt").write_text("the quick brown fox " * 200)
    recipe = tiny_recipe(folder / "corpus") | {"optimizer": {"kind": "adamw", "lr": 0.03}}
    drivetrain.train(recipe, ["budget.steps=20"], run=folder / "run", progress=False)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def test_the_likeliest_text_is_that_of_a_plain_loop_also_beyond_the_context(here):
    (row,) = drivetrain.generate("run", "the qu", tokens=40, temperature=0)
    network = drivetrain.Result.load("run").networks()["model"]
    tokens = list(b"the qu")
    with torch.no_grad():
        for _ in range(40):
            tokens.append(int(network(torch.tensor([tokens[-16:]]))[0, -1].argmax()))
    assert row["tokens"] == tokens[6:]
    assert row["text"] == bytes(tokens[6:]).decode(errors="replace")
    assert not row["ended"]


def test_a_text_follows_from_its_prompt_and_the_seed_and_not_from_what_is_beside_it(here):
    alone = drivetrain.generate("run", "fox", tokens=30)
    beside = drivetrain.generate("run", ["a", "fox", "the", "fox"], tokens=30, count=2)
    assert [(row["prompt"], row["number"]) for row in beside[:4]] == [("a", 0), ("a", 1), ("fox", 0), ("fox", 1)]
    assert alone == [beside[2]] == [beside[6]]
    assert beside[2]["text"] != beside[3]["text"]
    assert drivetrain.generate("run", "fox", tokens=30, seed=1) != alone
    assert (
        drivetrain.generate("run", "fox", tokens=30, top_k=1)[0]["text"]
        == (drivetrain.generate("run", "fox", tokens=30, temperature=0)[0]["text"])
    )


def test_tokens_out_of_the_question_are_never_drawn():
    logits = torch.tensor([0.1, 0.5, 0.25, 0.15]).log().unsqueeze(0)
    for how, left in (
        (Sampling(), [0, 1, 2, 3]),
        (Sampling(top_k=2), [1, 2]),
        (Sampling(top_k=9), [0, 1, 2, 3]),
        (Sampling(top_p=0.5), [1]),
        (Sampling(top_p=0.51), [1, 2]),
        (Sampling(top_p=1.0), [0, 1, 2, 3]),
        (Sampling(top_p=1e-9), [1]),
        (Sampling(top_k=2, top_p=0.7), [1, 2]),
        (Sampling(top_k=2, top_p=0.6), [1]),
    ):
        found = likeliest(logits, how)[0]
        assert found.isfinite().nonzero().flatten().tolist() == left, how
        assert torch.equal(found[left], logits[0, left])


@pytest.mark.parametrize(
    "wrong", [{"tokens": -1}, {"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 1.5}]
)
def test_a_number_that_makes_no_sense_is_64(wrong):
    with pytest.raises(Failure) as caught:
        Sampling(**wrong)
    assert caught.value.outcome.code is Exit.BAD_COMMAND


def test_prompts_come_from_options_files_and_what_is_piped_in(here, capsys, monkeypatch, tmp_path):
    (tmp_path / "prompts.txt").write_text("the\n\nfox\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a\\nb"}\n')
    texts, lines = str(tmp_path / "prompts.txt"), str(tmp_path / "prompts.jsonl")
    asked = ["generate", "run", "--tokens", "5", "--json"]

    def prompts(*arguments):
        assert command([*asked, *arguments]) == Exit.DONE
        return [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]

    assert prompts("--prompt", "x", "--prompt", "y") == ["x", "y"]
    assert prompts("--prompt", "x", "--file", texts) == ["x", "the", "fox"]
    assert prompts("--file", lines) == ["a\nb"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo")))
    assert prompts() == ["one", "two"]


def test_texts_are_written_to_a_new_file_that_is_there_once_it_is_whole(here, tmp_path, capsys):
    to = tmp_path / "said.jsonl"
    assert command(["generate", "run", "--prompt", "the", "--count", "3", "--tokens", "4", "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"{to}: 3 texts\n"
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert rows == drivetrain.generate("run", "the", count=3, tokens=4)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    for arguments, code, told in (
        (("--prompt", "a", "--to", str(to)), Exit.CANNOT_CREATE, "is there already"),
        (("--file", str(tmp_path / "bad.jsonl"), "--to", str(tmp_path / "n.jsonl")), Exit.BAD_DATA, "bad.jsonl:2"),
        (("--file", "prompts.csv"), Exit.BAD_COMMAND, ".txt or .jsonl"),
        (("--file", "nowhere.txt"), Exit.INPUT_MISSING, "nowhere.txt"),
        (("--prompt", ""), Exit.BAD_COMMAND, "has no token"),
        (("--prompt", "a\udcff"), Exit.BAD_COMMAND, "is no UTF-8"),
    ):
        assert command(["generate", "run", *arguments]) == code
        assert told in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"said.jsonl", "bad.jsonl"}


OWN = """
import torch
from torch import nn
from drivetrain import Task

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(2)

class Silent(Task):
    def networks(self):
        return {"model": nn.Linear(2, 2)}
    def loss(self, nets, batch):
        return nets["model"](batch).mean()

class Speaking(Silent):
    def generate(self, nets, prompt, how):
        assert not nets["model"].training
        return {"text": f"{prompt}!" * how.tokens, "drawn": float(torch.rand(()))}
"""


@pytest.mark.parametrize("kind", ["Silent", "Speaking"])
def test_a_task_of_ones_own_generates_where_it_has_the_method(tmp_path, monkeypatch, kind, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speaking_of_this_test.py").write_text(OWN)
    recipe = {
        "name": "own",
        "task": {"kind": f"speaking_of_this_test:{kind}"},
        "data": {"train": {"sources": [{"kind": "speaking_of_this_test:Points"}]}},
        "batch": {"size": 4},
        "budget": {"steps": 1},
    }
    (tmp_path / "own.json").write_text(json.dumps(recipe))
    drivetrain.train("own.json", run="run", progress=False)
    if kind == "Silent":
        assert command(["generate", "run", "--prompt", "a"]) == Exit.BAD_COMMAND
        assert "a run of task Silent, which generates no text" in capsys.readouterr().err
    else:
        first, second = drivetrain.generate("run", ["a", "b"], tokens=2)
        assert (first["prompt"], first["number"], first["text"]) == ("a", 0, "a!a!")
        assert drivetrain.generate("run", "b", tokens=2) == [second]
        assert first["drawn"] != second["drawn"]
        assert command(["generate", "run", "--prompt", "a", "--tokenizer", "bytes"]) == Exit.BAD_COMMAND
    sys.modules.pop("speaking_of_this_test", None)


def word_tokenizer(folder):
    """A tokenizer.json of words, with an end of documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["<end>", "<unknown>", *(f"▁{word}" for word in ["the", "quick", "brown", "fox", "jumps", "over"])]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<end>"])
    made.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 0)])
    made.enable_truncation(3)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A run on prepared documents of a tokenizer.json."""
    monkeypatch.chdir(tmp_path)
    content = word_tokenizer(tmp_path).read_bytes()
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number}.txt").write_text("the quick brown fox jumps over the fox")
    asked = Preparation(tmp_path / "tokens", tuple(find_inputs(["texts"])), encoding(content, eod="<end>"))
    prepare(asked)
    recipe = tiny_recipe(tmp_path)
    recipe["task"]["model"] |= {"vocabulary": 8, "context": 8, "dropout": 0.0}
    recipe["data"] = {"train": {"sources": [{"kind": "documents", "path": "tokens"}]}}
    drivetrain.train(recipe, ["budget.steps=60", "optimizer.lr=0.03"], run="run", progress=False)
    return tmp_path


def test_the_tokenizer_is_that_of_the_training_data_and_the_end_of_a_document_the_end(words, capsys):
    (row,) = drivetrain.generate("run", "the quick brown", temperature=0)
    assert row["text"] == " fox jumps over the fox"
    assert row["tokens"][-1] == 0
    assert row["ended"]
    (words / "tokens.tokenizer.json").rename(words / "elsewhere.json")
    assert command(["generate", "run", "--prompt", "the"]) == Exit.INPUT_MISSING
    told = capsys.readouterr().err
    assert "nothing says how text becomes tokens" in told
    assert "name it: --tokenizer FILE" in told
    (named,) = drivetrain.generate("run", "the quick brown", temperature=0, tokens=5, tokenizer="elsewhere.json")
    assert named["text"] == row["text"]


def same_as_transformers(folder, run, tokenizer, texts):
    """Both read each text to the same ids and logits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    own = drivetrain.Result.load(run).networks()["model"]
    for text in texts:
        given = theirs(text, return_tensors="pt")
        ids = tokenizer.encode([text.encode()])[0].tolist()
        assert given["input_ids"][0].tolist() == ids
        assert theirs.decode(ids) == tokenizer.decode(torch.tensor(ids).numpy())
        with torch.no_grad():
            assert torch.allclose(model(**given).logits, own(torch.tensor([ids])), atol=1e-4)
    return theirs, model


TEXTS = ["the quick", " a  b\n", "wörld \u65e5\u672c", "</s><|x|>", "\u0100 don't\x00"]


def test_an_export_of_a_model_of_bytes_reads_text_to_the_same_bytes_and_logits(here, tmp_path):
    from drivetrain.data.tokenizers import Bytes

    drivetrain.export("run", tmp_path / "to")
    theirs, model = same_as_transformers(tmp_path / "to", "run", Bytes(), TEXTS)
    every = bytes(range(256)) * 2
    assert theirs.decode(list(every)) == every.decode(errors="replace")
    prompt = theirs("the qu", return_tensors="pt")
    made = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0, 6:].tolist()
    assert made == drivetrain.generate("run", "the qu", tokens=10, temperature=0)[0]["tokens"]


def test_an_export_of_a_model_of_words_has_their_tokenizer_without_what_it_would_add(words, recwarn):
    from drivetrain.data.tokenizers import open_tokenizer

    drivetrain.export("run", "to")
    own = open_tokenizer((words / "tokenizer.json").read_bytes())
    theirs, model = same_as_transformers("to", "run", own, ["the quick brown fox jumps", "over <end> it"])
    assert (theirs.eos_token_id, model.config.eos_token_id) == (0, 0)
    made = model.generate(**theirs("the quick brown", return_tensors="pt"), do_sample=False, max_new_tokens=20)
    assert theirs.decode(made[0], skip_special_tokens=True) == "the quick brown fox jumps over the fox"
    assert not [one for one in recwarn if "tokenizer" in str(one.message)]
    (words / "tokens.tokenizer.json").unlink()
    with pytest.warns(UserWarning, match="the export has no tokenizer: nothing says .* beside the source tokens"):
        files = drivetrain.export("run", "without")
    assert [path.name for path in files] == ["model.safetensors", "config.json"]


def test_sources_of_several_tokenizers_are_told(words):
    from drivetrain.data.recipe import Documents, Text, Tokens
    from drivetrain.data.text_tokens import TextTokens, text_tokens

    prepared = Documents(path="tokens")
    content = (words / "tokenizer.json").read_bytes()
    assert text_tokens([prepared, Tokens(path="tokens.bin")], only_bytes=False) == TextTokens(content, 0)
    assert text_tokens([Text(path="texts")], only_bytes=False) == TextTokens(None)
    assert text_tokens([Tokens(path="raw.bin")], only_bytes=True) == TextTokens(None)
    with pytest.raises(Failure, match=r"beside the source raw\.bin") as unknown:
        text_tokens([Tokens(path="raw.bin")], only_bytes=False)
    assert unknown.value.outcome.code is Exit.INPUT_MISSING
    with pytest.raises(Failure, match="several tokenizers"):
        text_tokens([prepared, Text(path="texts")], only_bytes=False)
    (words / "tokens.tokenizer.json").write_text("{}")
    with pytest.raises(Failure, match="is not what its manifest says"):
        text_tokens([prepared], only_bytes=False)
