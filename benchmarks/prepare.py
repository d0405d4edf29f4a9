"""Preparing a token file, beside `tokenizers`' own `encode_batch` on all cores on the same documents.

    python benchmarks/prepare.py --rounds 5

The text is Python's standard library, repeated up to the size that is asked for; the tokenizer is a BPE trained on it
here. `encode_batch` gets documents that are in memory already, a megabyte at a time, and its ids are not even stored;
ours reads JSON lines, parses them, tokenizes, and writes a durable file. Resident memory is the sum over all processes
of what each has for itself (PSS), at its largest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"

BATCH = 1 << 20  # bytes that encode_batch gets at a time


def library() -> list[str]:
    """The standard library's files."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [path.read_text(errors="replace") for path in paths]


def documents(megabytes: int, texts: list[str]) -> list[str]:
    """Documents of about four kilobytes each."""
    pieces = [text[at : at + 4096] for text in texts for at in range(0, len(text), 4096)]
    made, size = [], 0
    while size < megabytes << 20:
        made.append(pieces[len(made) % len(pieces)])
        size += len(made[-1])
    return made


def train(folder: Path, texts: list[str], vocabulary: int) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def theirs(tokenizer, batches: list[list[str]], fast: bool) -> tuple[float, int]:
    """Seconds and tokens of `encode_batch`."""
    encode = tokenizer.encode_batch_fast if fast else tokenizer.encode_batch
    started = time.perf_counter()
    tokens = sum(len(one) for batch in batches for one in encode(batch, add_special_tokens=False))
    return time.perf_counter() - started, tokens


def command(inputs: Path, to: Path, tokenizer: str) -> list[str]:
    begin = [sys.executable, "-m", "drivetrain", "data", "prepare", str(inputs), "--to", str(to), "--json"]
    return [*begin, "--tokenizer", tokenizer]


def ours(inputs: Path, to: Path, tokenizer: str, watched: bool = False) -> tuple[float, int, int]:
    """Seconds of the whole command, tokens, and where it is watched the largest memory in bytes."""
    started = time.perf_counter()
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    process = subprocess.Popen(command(inputs, to, tokenizer), stdout=subprocess.PIPE, env=environment)
    most = 0
    while watched and process.poll() is None:
        most = max(most, memory(process.pid))
        time.sleep(0.05)
    assert process.stdout is not None
    made = json.loads(process.stdout.read())
    process.wait()
    taken = time.perf_counter() - started
    for path in to.parent.glob(f"{to.name}.*"):
        path.unlink()
    return taken, made["tokens"], most


def memory(pid: int) -> int:
    """Bytes of a process and all below it; pages that several share are counted once."""
    import psutil

    total = 0
    try:
        for one in (process := psutil.Process(pid), *process.children(recursive=True)):
            try:
                total += one.memory_full_info().pss
            except psutil.Error:
                pass
    except psutil.Error:
        pass
    return total


def write(path: Path, texts: list[str]) -> Path:
    with path.open("w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    return path


def compare(folder: Path, megabytes: int, rounds: int, texts: list[str], vocabulary: int) -> None:
    from tokenizers import Tokenizer

    path = train(folder, texts, vocabulary)
    tokenizer = Tokenizer.from_file(str(path))
    made = documents(megabytes, texts)
    inputs = write(folder / "speed.jsonl", made)
    per_batch = BATCH // 4096
    batches = [made[at : at + per_batch] for at in range(0, len(made), per_batch)]
    rates: dict[str, list[float]] = {"encode_batch": [], "encode_batch_fast": [], "ours": []}
    for _ in range(rounds):
        for name in ("encode_batch", "encode_batch_fast"):
            taken, tokens = theirs(tokenizer, batches, name.endswith("fast"))
            rates[name].append(tokens / taken)
        taken, same, _ = ours(inputs, folder / "out", str(path))
        assert same == tokens
        rates["ours"].append(same / taken)
    print(f"{megabytes} MB, {tokens:,} tokens, {os.cpu_count()} cores, medians of {rounds} rounds")
    for name, found in rates.items():
        ratios = sorted(mine / own for mine, own in zip(rates["ours"], found, strict=True))
        ratio = (
            "" if name == "ours" else f"; ours {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
        print(f"  {name}: {statistics.median(found) / 1e6:.2f} M tokens/s{ratio}", flush=True)
    for name in (str(path), "bytes"):
        for size in (10, 200):
            large = write(folder / "memory.jsonl", documents(size, texts))
            taken, count, most = ours(large, folder / "out", name, watched=True)
            kind = "bytes" if name == "bytes" else "BPE"
            print(f"  {kind}, {size} MB: {most >> 20} MB at most, {count / taken / 1e6:.2f} M tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), asked.megabytes, asked.rounds, library(), asked.vocabulary)


if __name__ == "__main__":
    main()
