"""A tiny BERT with its tokenizer, tiny tables in GLUE's layouts, and recipes for them."""

import random
from functools import cache

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tiny_bert(folder, **settings):
    """Write a random BERT of a few thousand weights and its tokenizer, as `save_pretrained` does."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        **settings,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer(pairs=True).save_pretrained(folder)
    return folder


def tiny_decoder(folder, kind, **settings):
    """Write a random decoder, whose tokenizer has no token to pad with."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(SPECIAL) + len(WORDS), **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer(pairs=False).save_pretrained(folder)
    return folder


def tokenizer(pairs):
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if not pairs:
        return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="[SEP]", unk_token="[UNK]")
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=48, model_input_names=inputs, **names)


@cache
def rows(count, seed=0):
    """Texts of two to twenty words; the label says whether the first word of them is one of the first half."""
    draw = random.Random(seed)
    texts = [[draw.choice(WORDS) for _ in range(draw.randint(2, 20))] for _ in range(count)]
    return [(" ".join(words), int(WORDS.index(words[0]) < 30)) for words in texts]


def folders(folder):
    """A folder with a model and tables of RTE, CoLA and MNLI; returns the folder."""
    tiny_bert(folder / "bert")
    write_rte(folder / "RTE")
    write_cola(folder / "CoLA")
    write_mnli(folder / "MNLI")
    return folder


def write_rte(folder, sizes=(96, 24, 10)):
    names = ("entailment", "not_entailment")
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in zip(("train", "dev", "test"), sizes, strict=True):
        labelled = part != "test"
        lines = ["index\tsentence1\tsentence2" + ("\tlabel" if labelled else "")]
        for number, (text, label) in enumerate(rows(size, len(part))):
            end = f"\t{names[1 - label]}" if labelled else ""
            lines.append(f'{number}\t{text}\t"{WORDS[number % 60]}{end}')
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")


def write_cola(folder, sizes=(64, 24, 10)):
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in zip(("train", "dev", "test"), sizes, strict=True):
        lines = ["index\tsentence"] if part == "test" else []
        for number, (text, label) in enumerate(rows(size, len(part))):
            lines.append(f"{number}\t{text}" if part == "test" else f"gj04\t{label}\t{'*' * (1 - label)}\t{text}")
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")


def write_mnli(folder, size=64):
    """Its training set, with the columns that are read."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("entailment", "neutral", "contradiction")
    lines = ["index\tsentence1\tsentence2\tgold_label"]
    lines += [f"{n}\t{text}\t{WORDS[n % 60]}\t{names[n % 3]}" for n, (text, _) in enumerate(rows(size))]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")


def recipe(folder, **task):
    """GLUE's RTE by a tiny BERT: a few milliseconds a step."""
    return {
        "name": "rte",
        "task": {
            "kind": "classification",
            "glue": "rte",
            "folder": str(folder),
            "model": str(folder / "bert"),
            "length": 32,
            **task,
        },
        "data": {
            "train": {"sources": [{"kind": "glue", "set": "train"}], "buckets": 3},
            "validation": {"dev": {"kind": "glue", "set": "dev"}},
            "test": {"test": {"kind": "glue", "set": "test"}},
        },
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 12},
        "optimizer": {"kind": "adamw", "lr": 3e-3},
        "evaluate": {"every": {"steps": 6}, "batch": 5},
        "checkpoint": {"every": {"steps": 6}, "keep_best": {"metric": "dev/score", "mode": "max"}},
        "launch": {"threads": 1},
    }
