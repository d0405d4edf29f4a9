import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.cli.main import run
from drivetrain.data import cuts, documents, text_columns, unfinished
from drivetrain.data.cuts import parts_of
from drivetrain.data.documents import documents as documents_of
from drivetrain.data.documents import tasks
from drivetrain.data.indexed import open_indexed
from drivetrain.data.inputs import find_inputs
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.spec.exits import Exit, Failure

TEXTS = [f"document {n}: " + "the quick brown fox; " * (n % 17) + "ümläut ☃" for n in range(300)]
SHAKESPEARE = Path(__file__).parents[3] / "shared/data/text/tinyshakespeare.txt"
SUFFIXES = (".bin", ".documents", ".idx", ".json", ".tokenizer.json")


def do(
    to, *inputs, format_="drivetrain", skip_bad=0, workers=1, tokenizer=None, kind=None, include=(), split=None, **how
):
    found = find_inputs([str(path) for path in inputs], include, kind, split)
    made = encoding(tokenizer, format_=format_, **how)
    return prepare(Preparation(Path(to), tuple(found), made, format_, skip_bad, workers))


def read(name):
    opened = open_indexed(name)
    return [opened.tokens[a:b].tolist() for a, b in zip(opened.offsets[:-1], opened.offsets[1:], strict=True)]


def texts(name):
    return [bytes(tokens).decode() for tokens in read(name)]


def content(name):
    return {s: Path(f"{name}{s}").read_bytes() for s in SUFFIXES if Path(f"{name}{s}").exists()}


def jsonl(path, lines=TEXTS):
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in lines))
    return path


def saved(folder, lines=TEXTS, files=2, rows=100, column="text", kind=None):
    """As `Dataset.save_to_disk` writes it; the last file's name is the first by the alphabet."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    names = [f"data-{files - number:05}-of-{files:05}.arrow" for number in range(files)]
    for name, part in zip(names, np.array_split(np.arange(len(lines)), files), strict=True):
        texts = pyarrow.array([lines[n] for n in part], kind or pyarrow.string())
        table = pyarrow.table({"n": part, column: texts})
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=rows)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


@pytest.fixture(scope="module")
def bpe():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.fixture
def small_steps(monkeypatch):
    """Many cuts in little text."""
    monkeypatch.setattr(cuts, "_STEP", {"text": 100, "jsonl": 100})
    monkeypatch.setattr(cuts, "_SEARCH", 40)
    monkeypatch.setattr(documents, "_TASK", 150)
    monkeypatch.setattr(text_columns, "_ROWS", 3)


def packed(path, data):
    suffix = path.suffix
    if suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames
        return path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(d) for d in (data[:half], data[half:])))
    how = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    return path.write_bytes(how[suffix](data) if suffix in how else data)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_json_lines_become_one_document_each(tmp_path, suffix, small_steps):
    plain = jsonl(tmp_path / "a.jsonl").read_bytes()
    path = tmp_path / f"b.jsonl{suffix}"
    packed(path, plain.rstrip(b"\n") if not suffix else plain)
    manifest = do(tmp_path / "out", path, eod="0")
    assert texts(tmp_path / "out") == [text + "\0" for text in TEXTS]
    assert manifest["tokens"] == sum(len(text.encode()) + 1 for text in TEXTS)
    assert (manifest["documents"], manifest["largest"], manifest["dtype"]) == (300, 0xE2, "uint16")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_text_files_are_one_document_each_however_they_are_cut(tmp_path, suffix, small_steps):
    whole = ["", "\n".join(TEXTS[:50]), "x" * 999, "☃" * 333, "", "short", "\n \n" * 200 + "end\n"]
    for number, text in enumerate(whole):
        packed(tmp_path / f"{number}.txt{suffix}", text.encode())
    manifest = do(tmp_path / "out", tmp_path, eod="7")
    assert texts(tmp_path / "out") == [text + "\7" for text in whole if text]
    assert manifest["empty"] == 2
    assert [Path(i["path"]).name for i in manifest["inputs"]] == [f"{n}.txt{suffix}" for n in range(7)]


@settings(max_examples=60)
@given(st.text(alphabet="ab \n☃é", max_size=400), st.integers(5, 60), st.integers(1, 30))
def test_a_compressed_file_is_cut_as_a_plain_one_and_nothing_is_lost(tmp_path_factory, text, step, search):
    folder, data = tmp_path_factory.mktemp("cut"), text.encode()
    (folder / "a.txt").write_bytes(data)
    (folder / "a.txt.gz").write_bytes(gzip.compress(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_STEP", {"text": step, "jsonl": step})
        patch.setattr(cuts, "_SEARCH", search)
        for kind in ("text", "jsonl"):
            found = []
            for name in ("a.txt", "a.txt.gz"):
                inputs = find_inputs([str(folder / name)], kind=kind)
                pieces = [piece for task in tasks(inputs, "text") for piece in task.pieces]
                found.append([(p.start, p.stop, p.inside, p.open) for p in pieces])
                if kind == "text":
                    parts = [documents_of(piece, "text")[0][0] for piece in pieces]
                    assert b"".join(parts) == data
                    assert all(part.decode() is not None for part in parts)
            assert found[0] == found[1]
        assert b"".join(parts_of(data)) == data


def test_parquet_columns_are_read(tmp_path, small_steps):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for number, kind in enumerate([pyarrow.string(), pyarrow.large_string(), pyarrow.binary()]):
        column = pyarrow.array([t.encode() if number == 2 else t for t in TEXTS], kind)
        table = pyarrow.table({"body": column, "n": list(range(300))})
        parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=70)
        do(tmp_path / f"out{number}", tmp_path / f"{number}.parquet", field="body")
        assert texts(tmp_path / f"out{number}") == TEXTS
    for field, words in (("bdoy", "did you mean 'body'"), ("n", "no text")):
        with pytest.raises(Failure, match=words) as caught:
            do(tmp_path / "none", tmp_path / "0.parquet", field=field)
        assert caught.value.outcome.code == Exit.BAD_DATA
    parquet.write_table(pyarrow.table({"text": ["a", None, "b"]}), tmp_path / "null.parquet")
    with pytest.raises(Failure, match=r"null.parquet:2: 'text' is null"):
        do(tmp_path / "none", tmp_path / "null.parquet")


@settings(max_examples=30)
@given(st.lists(st.text(alphabet="ab☃", min_size=1), max_size=30), st.integers(1, 4), st.integers(1, 9))
def test_a_saved_data_set_is_its_texts_in_order_however_it_is_cut(tmp_path_factory, lines, files, rows):
    folder = tmp_path_factory.mktemp("saved")
    found = find_inputs([str(saved(folder / "data", lines, files, rows))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_columns, "_ROWS", 3)
        patch.setattr(documents, "_TASK", 20)
        pieces = [piece for task in tasks(found, "text") for piece in task.pieces]
    assert [text.decode() for piece in pieces for text in documents_of(piece, "text")[0]] == lines


def test_columns_of_a_saved_data_set_are_read_as_those_of_parquet(tmp_path, small_steps):
    pa = pytest.importorskip("pyarrow")
    kinds = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
    for number, kind in enumerate(kinds):
        lines = [text.encode() for text in TEXTS] if "binary" in str(kind) else TEXTS
        saved(tmp_path / f"{number}", lines, column="body", kind=kind)
        do(tmp_path / f"out{number}", tmp_path / f"{number}", field="body")
        assert texts(tmp_path / f"out{number}") == TEXTS
    for field, words in (("bdoy", "did you mean 'body'"), ("n", "no text")):
        with pytest.raises(Failure, match=words) as caught:
            do(tmp_path / "none", tmp_path / "0", field=field)
        assert caught.value.outcome.code == Exit.BAD_DATA
    saved(tmp_path / "null", ["a", None, "b"], files=1)
    with pytest.raises(Failure, match=r"00001-of-00001.arrow:2: 'text' is null"):
        do(tmp_path / "none", tmp_path / "null")


def test_a_saved_file_that_is_cut_off_or_makes_no_sense_is_65(tmp_path):
    path = saved(tmp_path / "data", TEXTS, files=1) / "data-00001-of-00001.arrow"
    whole = path.read_bytes()
    for damaged in (whole[:-8], whole[: len(whole) // 2], whole.replace("☃".encode(), b"\xff" * 3), b"ARROW1"):
        path.write_bytes(damaged)
        with pytest.raises(Failure, match="cannot be read") as caught:
            do(tmp_path / "out", tmp_path / "data")
        assert (caught.value.outcome.code, caught.value.outcome.where["file"]) == (Exit.BAD_DATA, str(path))
        shutil.rmtree(tmp_path / "out.preparing")


def test_of_several_saved_data_sets_one_is_chosen(tmp_path, capsys):
    both, parts = tmp_path / "both", {"train": TEXTS[:20], "test": TEXTS[20:30]}
    for name, lines in parts.items():
        saved(both / name, lines)
    (both / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    (tmp_path / "a.txt").write_text("abc")

    def end(*arguments):
        code = run(["data", "prepare", *map(str, arguments), "--to", str(tmp_path / "out"), "--workers", "1"])
        return code, capsys.readouterr().err

    for arguments, code, words in (
        ([both], Exit.BAD_DATA, "--split is one of train, test"),
        ([both, "--split", "trian"], Exit.BAD_DATA, "did you mean 'train'"),
        ([both / "train", "--split", "train"], Exit.BAD_DATA, "--split is not needed"),
        ([tmp_path / "a.txt", "--split", "train"], Exit.BAD_COMMAND, "leave --split out"),
    ):
        found, error = end(*arguments)
        assert found == code
        assert words in error
    assert end(tmp_path / "a.txt", both, "--split", "test")[0] == 0
    assert texts(tmp_path / "out") == ["abc", *parts["test"]]


def test_arrow_files_are_taken_by_name_and_never_from_a_folder_that_does_not_list_them(tmp_path):
    saved(tmp_path / "all" / "data", TEXTS[:10], files=1)
    (tmp_path / "all" / "state.json").write_text("{}")  # anyone's
    (tmp_path / "all" / "a.txt").write_text("abc")
    (tmp_path / "all" / "data" / "cache-1.arrow").write_bytes(b"what a computation left")
    assert [Path(found.path).name for found in find_inputs([str(tmp_path / "all")])] == ["a.txt"]
    do(tmp_path / "out", *(tmp_path / "all" / "data").glob("data-*.arrow"))
    assert texts(tmp_path / "out") == TEXTS[:10]


def test_what_datasets_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(300))})
    parts = datasets.DatasetDict({"train": whole.filter(lambda row: row["n"] % 3), "rest": whole.select([7, 5])})
    parts.save_to_disk(str(tmp_path / "both"), num_shards={"train": 3, "rest": 1})
    manifest = do(tmp_path / "out", tmp_path / "both", split="train")
    assert texts(tmp_path / "out") == [text for n, text in enumerate(TEXTS) if n % 3]
    assert len(manifest["inputs"]) == 3
    do(tmp_path / "rest", tmp_path / "both" / "rest")
    assert texts(tmp_path / "rest") == [TEXTS[7], TEXTS[5]]


@pytest.mark.parametrize("format_", ["drivetrain", "megatron"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, bpe, format_, monkeypatch):
    monkeypatch.setattr(cuts, "_STEP", {"text": 1 << 14, "jsonl": 1 << 14})
    monkeypatch.setattr(documents, "_TASK", 1 << 15)
    jsonl(tmp_path / "a.jsonl", TEXTS * 4)
    (tmp_path / "b.txt").write_text("\n".join(TEXTS * 8))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS * 8).encode()))
    saved(tmp_path / "d", TEXTS * 4)
    for workers in (1, 3):
        name = tmp_path / f"out{workers}"
        inputs = [tmp_path / "a.jsonl", tmp_path / "b.txt", tmp_path / "c.txt.gz", tmp_path / "d"]
        do(name, *inputs, workers=workers, tokenizer=bpe.to_str().encode(), eod="<|end|>", format_=format_)
    assert content(tmp_path / "out1") == content(tmp_path / "out3")
    assert len(content(tmp_path / "out1")) == 4
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in tmp_path.glob("out*"))
    assert not list(tmp_path.glob("*.preparing"))


def test_a_tokenizer_json_gives_what_the_library_gives(tmp_path, bpe):
    folder = tmp_path / "model"
    folder.mkdir()
    bpe.save(str(folder / "tokenizer.json"))
    jsonl(tmp_path / "a.jsonl")
    arguments = ["data", "prepare", str(tmp_path / "a.jsonl"), "--to", str(tmp_path / "out"), "--workers", "1"]
    assert run([*arguments, "--tokenizer", str(folder), "--eod", "<|end|>"]) == 0
    end = bpe.token_to_id("<|end|>")
    assert read(tmp_path / "out") == [[*bpe.encode(text, add_special_tokens=False).ids, end] for text in TEXTS]


def test_a_text_cut_after_lines_has_the_same_tokens_as_in_one_piece(tmp_path, bpe, small_steps, monkeypatch):
    monkeypatch.setattr(cuts, "_SEARCH", 1000)
    whole = "\n".join(TEXTS)
    (tmp_path / "a.txt").write_text(whole)
    do(tmp_path / "out", tmp_path / "a.txt", tokenizer=bpe.to_str().encode())
    assert read(tmp_path / "out") == [bpe.encode(whole, add_special_tokens=False).ids]


def test_megatrons_index_is_as_megatron_writes_it(tmp_path):
    jsonl(tmp_path / "a.jsonl", ["abc", "", "de", "f"])
    do(tmp_path / "out", tmp_path / "a.jsonl", format_="megatron")
    index = (tmp_path / "out.idx").read_bytes()
    magic, version, code, sequences, boundaries = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, code, sequences, boundaries) == (b"MMIDIDX\0\0", 1, 8, 3, 4)
    assert np.frombuffer(index, "<i4", 3, 34).tolist() == [3, 2, 1]
    assert np.frombuffer(index, "<i8", 3, 46).tolist() == [0, 6, 10]
    assert np.frombuffer(index, "<i8", 4, 70).tolist() == [0, 1, 2, 3]
    assert len(index) == 102
    assert np.fromfile(tmp_path / "out.bin", "<u2").tobytes().replace(b"\0", b"") == b"abcdef"
    (tmp_path / "out.json").unlink()
    assert texts(tmp_path / "out.idx") == ["abc", "de", "f"]


def megatron(folder, lengths=(3, 2), pointers=(0, 12), boundaries=(0, 1, 2), code=4, version=1, size=20, tail=b""):
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", version, code, len(lengths), len(boundaries))
    arrays = np.array(lengths, "<i4").tobytes() + np.array([*pointers, *boundaries], "<i8").tobytes()
    (folder / "m.idx").write_bytes(header + arrays + tail)
    (folder / "m.bin").write_bytes(np.arange(size // 4, dtype="<i4").tobytes())
    return folder / "m.idx"


def test_megatron_documents_of_several_sequences_are_read(tmp_path):
    assert read(megatron(tmp_path)) == [[0, 1, 2], [3, 4]]
    assert read(megatron(tmp_path, boundaries=(0, 2))) == [[0, 1, 2, 3, 4]]
    assert read(megatron(tmp_path, boundaries=(0, 0, 2, 2))) == [[], [0, 1, 2, 3, 4], []]


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"code": 9},
        {"code": 7},
        {"size": 16},
        {"size": 24},
        {"tail": b"x"},
        {"pointers": (12, 0)},
        {"pointers": (0, 8)},
        {"lengths": (-1, 6), "pointers": (0, -4)},
        {"boundaries": (0, 1)},
        {"boundaries": (1, 2)},
        {"boundaries": (0, 3, 2)},
        {"boundaries": ()},
    ],
    ids=str,
)
def test_a_megatron_index_that_does_not_fit_its_file_is_65(tmp_path, wrong):
    path = megatron(tmp_path, **wrong)
    with pytest.raises(Failure) as caught:
        open_indexed(path)
    assert caught.value.outcome.code == Exit.BAD_DATA


@pytest.mark.parametrize("damage", ["cut index", "cut bin", "magic", "descending", "manifest", "no manifest", "no bin"])
def test_a_damaged_file_is_found_when_it_is_opened(tmp_path, damage):
    do(tmp_path / "out", jsonl(tmp_path / "a.jsonl"))
    paths = {suffix: Path(f"{tmp_path / 'out'}{suffix}") for suffix in SUFFIXES}
    index = paths[".documents"]
    if damage == "cut index":
        os.truncate(index, index.stat().st_size - 1)
    elif damage == "cut bin":
        os.truncate(paths[".bin"], 100)
    elif damage == "magic":
        index.write_bytes(b"x" + index.read_bytes()[1:])
    elif damage == "descending":
        data = bytearray(index.read_bytes())
        data[40:48] = (10**6).to_bytes(8, "little")
        index.write_bytes(data)
    elif damage == "manifest":
        paths[".json"].write_text("{}")
    else:
        paths[".json" if damage == "no manifest" else ".bin"].unlink()
    with pytest.raises(Failure) as caught:
        open_indexed(tmp_path / "out")
    assert caught.value.outcome.code == (Exit.INPUT_MISSING if "no " in damage else Exit.BAD_DATA)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{not json", ""),
        ("[1]", "no JSON object"),
        ('{"txet": "a"}', "did you mean"),
        ('{"text": 3}', "no text"),
        ('{"text": "\\ud800"}', "surrogates"),
        ("[" * 200_000, ""),
    ],
    ids=["json", "list", "field", "number", "surrogate", "deep"],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_malformed_line_is_named_and_skipped_where_that_is_allowed(tmp_path, bad, why, suffix, small_steps):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[10], lines[200] = "", bad
    path = tmp_path / f"a.jsonl{suffix}"
    packed(path, "\n".join(lines).encode())
    with pytest.raises(Failure, match=rf"a.jsonl{suffix}:201: .*{why}") as caught:
        do(tmp_path / "out", path)
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert not (tmp_path / "out.bin").exists()
    manifest = do(tmp_path / "out", path, skip_bad=1)  # goes on from the failure
    assert [(entry["file"], entry["line"]) for entry in manifest["bad"]] == [(str(path), 201)]
    assert texts(tmp_path / "out") == [text for n, text in enumerate(TEXTS) if n not in (10, 200)]


def test_more_bad_lines_than_allowed_are_65(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nx\ny\nz\n')
    with pytest.raises(Failure, match=r"a.jsonl:4: .*2 before it"):
        do(tmp_path / "out", tmp_path / "a.jsonl", skip_bad=2)


@pytest.mark.parametrize("head", [b"[", b"\xef\xbb\xbf \n ["])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_one_array_in_place_of_lines_is_65_with_advice(tmp_path, suffix, head):
    path = tmp_path / f"a.json{suffix}"
    packed(path, head + b'{"text": "a"},\n{"text": "b"}]')
    with pytest.raises(Failure, match="one array") as caught:
        do(tmp_path / "out", path, kind="jsonl", skip_bad=9)
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert "one object a line" in caught.value.outcome.hint


def broken(folder, suffix):
    path = folder / f"a.txt{suffix}"
    packed(path, os.urandom(5000))
    os.truncate(path, path.stat().st_size - 40)
    return path


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_compressed_file_that_was_cut_off_is_65(tmp_path, suffix):
    with pytest.raises(Failure, match="cannot be read") as caught:
        do(tmp_path / "out", broken(tmp_path, suffix))
    assert caught.value.outcome.code == Exit.BAD_DATA


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere.txt"], Exit.INPUT_MISSING),
        (["*.none"], Exit.INPUT_MISSING),
        (["empty"], Exit.INPUT_MISSING),
        (["empty.txt"], Exit.BAD_DATA),
        (["pipe"], Exit.BAD_DATA),
        (["a.txt", "--tokenizer", "nowhere.json"], Exit.INPUT_MISSING),
        (["a.txt", "--tokenizer", "empty"], Exit.INPUT_MISSING),
        (["a.txt", "--tokenizer", "a.txt"], Exit.BAD_DATA),
        (["a.txt", "--eod", "256"], Exit.BAD_DATA),
        (["a.txt", "--vocabulary", "98"], Exit.BAD_DATA),
        (["a.txt", "--eod", "<end>"], Exit.BAD_COMMAND),
        (["a.txt", "--format", "other"], Exit.BAD_COMMAND),
        (["a.txt", "--kind", "jsonl"], Exit.BAD_DATA),
        (["a.json"], Exit.BAD_COMMAND),
    ],
    ids=str,
)
def test_every_failure_has_its_code(tmp_path, monkeypatch, capsys, arguments, code):
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("abc")
    Path("a.json").write_text("{}")
    Path("empty.txt").write_text("")
    Path("empty").mkdir()
    os.mkfifo("pipe")
    assert run(["data", "prepare", *arguments, "--to", "out", "--workers", "1"]) == code
    assert "drivetrain: " in capsys.readouterr().err
    assert not Path("out.bin").exists()


def test_text_that_is_no_utf8_is_65_for_a_tokenizer_and_fine_for_bytes(tmp_path, bpe):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(Failure, match=r"a.txt: no UTF-8"):
        do(tmp_path / "out", tmp_path / "a.txt", tokenizer=bpe.to_str().encode())
    assert do(tmp_path / "bytes", tmp_path / "a.txt")["largest"] == 255


def test_a_finished_file_is_kept_and_another_one_never_overwritten(tmp_path):
    path = jsonl(tmp_path / "a.jsonl")
    first = do(tmp_path / "out", path)
    changed = (tmp_path / "out.bin").stat().st_mtime_ns
    assert do(tmp_path / "out", path) == first
    assert (tmp_path / "out.bin").stat().st_mtime_ns == changed
    with pytest.raises(Failure) as caught:
        do(tmp_path / "out", path, eod="0")
    assert caught.value.outcome.code == Exit.CANNOT_CREATE


def test_unfinished_work_of_other_settings_is_76(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [*TEXTS * 200, "\ud800"])
    with pytest.raises(Failure, match=r"a.jsonl:60001: "):
        do(tmp_path / "out", path)
    with pytest.raises(Failure, match="other eod") as caught:
        do(tmp_path / "out", path, eod="0")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


def test_patterns_folders_and_hidden_files(tmp_path):
    for name in ("b.txt", "a.md", "c.bin", ".hidden.txt", "sub/d.jsonl.gz", ".git/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [Path(found.path).relative_to(tmp_path).as_posix() for found in find_inputs([str(tmp_path)])]
    assert names == ["a.md", "b.txt", "sub/d.jsonl.gz"]
    assert [found.kind for found in find_inputs([str(tmp_path)])] == ["text", "text", "jsonl"]
    assert [Path(found.path).name for found in find_inputs([f"{tmp_path}/*.txt"])] == ["b.txt"]
    assert [Path(found.path).name for found in find_inputs([str(tmp_path)], ["*.bin"])] == ["c.bin"]
    (tmp_path / "f.json.gz").write_text("x")  # not known by its name, so it must be said what it is
    assert [found.kind for found in find_inputs([f"{tmp_path}/*.json.gz"], kind="jsonl")] == ["jsonl"]


DRIVER = """
from drivetrain.cli.main import main
from drivetrain.data import cuts, documents, unfinished
cuts._STEP = {"text": 1 << 14, "jsonl": 1 << 14}
documents._TASK = 1 << 14
unfinished._SYNC = 0.0
main()
"""


def command(folder, name, inputs):
    tokenizer = ["--tokenizer", str(folder / "tokenizer.json"), "--eod", "<|end|>"]
    begin = [sys.executable, "-c", DRIVER, "data", "prepare", *map(str, inputs)]
    return [*begin, "--to", str(folder / name), "--workers", "2", *tokenizer]


def test_killed_three_times_and_started_again_it_writes_the_same_files(tmp_path, bpe):
    bpe.save(str(tmp_path / "tokenizer.json"))
    jsonl(tmp_path / "a.jsonl", TEXTS * 10)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS * 10).encode()))
    (tmp_path / "c.txt").write_text("\n".join(TEXTS * 10))
    saved(tmp_path / "d", TEXTS * 10)
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.txt.gz", tmp_path / "c.txt", tmp_path / "d"]
    subprocess.run(command(tmp_path, "whole", inputs), check=True, capture_output=True)
    journal, generator, lines = tmp_path / "killed.preparing" / "journal.jsonl", random.Random(), [0]
    for _ in range(3):
        process = subprocess.Popen(command(tmp_path, "killed", inputs), stdout=subprocess.DEVNULL)
        until = lines[-1] + generator.randint(2, 20)
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < until):
            time.sleep(0.001)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines.append(journal.read_bytes().count(b"\n"))
    assert lines == sorted(set(lines))  # each start went on from the one before
    subprocess.run(command(tmp_path, "killed", inputs), check=True, capture_output=True)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert not list(tmp_path.glob("*.preparing"))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("format_", ["drivetrain", "megatron"])
def test_stopped_at_every_durable_write_and_rename_it_goes_on_to_the_same_bytes(
    tmp_path, monkeypatch, small_steps, format_
):
    """An exception stands for the kill."""
    monkeypatch.setattr(unfinished, "_SYNC", 0.0)
    path = jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    do(tmp_path / "whole", path, eod="0", format_=format_)
    real = {"fsync": os.fsync, "replace": os.replace}
    calls, limit = 0, 0

    def counted(name):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Killed
            return real[name](*arguments)

        return call

    for number in range(0, 200, 7):
        monkeypatch.setattr(os, "fsync", counted("fsync"))
        monkeypatch.setattr(os, "replace", counted("replace"))
        calls, limit = 0, number
        try:
            do(tmp_path / "out", path, eod="0", format_=format_)
        except Killed:
            pass
    monkeypatch.undo()
    do(tmp_path / "out", path, eod="0", format_=format_)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_two_at_once_are_refused(tmp_path):
    import fcntl

    path = jsonl(tmp_path / "a.jsonl")
    (tmp_path / "out.preparing").mkdir()
    with (tmp_path / "out.preparing" / "journal.jsonl").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Failure) as caught:
            do(tmp_path / "out", path)
    assert caught.value.outcome.code == Exit.OWNED_ELSEWHERE


def test_describe_and_inspect_a_file(tmp_path, capsys, bpe):
    bpe.save(str(tmp_path / "tokenizer.json"))
    do(tmp_path / "out", jsonl(tmp_path / "a.jsonl"), tokenizer=bpe.to_str().encode(), eod="<|end|>")
    assert run(["data", "describe", str(tmp_path / "out"), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    lengths = [len(tokens) for tokens in read(tmp_path / "out")]
    assert about["documents"] == 300
    assert (about["tokens"], about["shortest"], about["longest"]) == (sum(lengths), min(lengths), max(lengths))
    assert run(["data", "inspect", f"{tmp_path / 'out'}.bin", "--position", "2", "--count", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["position"], second["position"]) == (2, 3)
    flat = [token for tokens in read(tmp_path / "out") for token in tokens][512 : 512 + 257]
    shown = "".join(part["text"] for part in first["documents"])
    assert shown == bpe.decode(flat, skip_special_tokens=False)
    assert len(first["documents"]) > 1
    assert run(["data", "inspect", str(tmp_path / "out")]) == 0
    assert "[document 0: tokens 0 to" in capsys.readouterr().out
    assert run(["data", "describe", str(tmp_path / "out")]) == 0
    assert "documents: 300" in capsys.readouterr().out
    assert run(["data", "inspect", str(tmp_path / "out"), "--position", "100000"]) == Exit.BAD_COMMAND


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="../shared/data is not here")
def test_real_text_comes_back_as_it_was(tmp_path):
    do(tmp_path / "out", SHAKESPEARE)
    assert texts(tmp_path / "out") == [SHAKESPEARE.read_text()]
