"""The examples beside the originals that they stand for, on the same data with the same settings, in turn.

    python benchmarks/examples/run.py --nanogpt FOLDER --pytorch-examples FOLDER

The folders are clones of github.com/karpathy/nanoGPT and github.com/pytorch/examples; nothing of them is kept here.
For each seed ours trains, then theirs (next time theirs first). Told are lines, seconds of the training loop, without
evaluations, pictures and commits, and losses: on training samples, just before each quarter of the run, and at the end
on validation samples. It prints a table, and writes all numbers to benchmarks/results/examples.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lines import Lines, count

from drivetrain import Result
from drivetrain.ledger.ledger import read

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Pair:
    """An example, and what of the original a user would write or copy: files below the folder given by `where`."""

    where: str
    files: tuple[str, ...]


PAIRS = {
    "char_gpt": Pair("nanogpt", ("train.py", "model.py", "config/train_shakespeare_char.py")),
    "vae": Pair("pytorch_examples", ("vae/main.py",)),
    "dcgan": Pair("pytorch_examples", ("dcgan/main.py",)),
    "word_lm": Pair("pytorch_examples", tuple(f"word_language_model/{name}.py" for name in ("main", "model", "data"))),
}


def output_of(command: list[str]) -> str:
    """What a command prints; it ends this one where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def ours(name: str, overrides: list[str]) -> dict:
    """One run of an example: what `original.py` says of an original."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recipe = str(EXAMPLES / f"{name}.yaml")
        output_of([sys.executable, "-m", "drivetrain", "train", recipe, *overrides, "--run", str(run)])
        records, networks = list(read(run / "ledger.jsonl")), Result.load(run).networks()
        (scores,) = Result.load(run).metrics.values()
    seconds, before = [], None
    for record in records:
        if record.kind == "step":
            if before is not None:
                seconds.append(record.time - before)
            before = record.time
        elif record.kind in ("evaluation", "show"):
            before = None  # the next step's time is not its own alone
    steps = [record for record in records if record.kind == "step"]
    told = {
        "steps": len(steps),
        "seconds": statistics.fmean(seconds),
        "parameters": sum(weight.numel() for network in networks.values() for weight in network.parameters()),
        "losses": [sum(step.losses.values()) for step in steps],
        "interval": 1,
        "scores": {"loss": scores["loss"] if "loss" in scores else sum(scores.values())},
    }
    if name == "dcgan":
        for network, key in (("discriminator", "losses"), ("generator", "generator")):
            told[key] = [step.losses[f"{network}.loss"] for step in steps]
        told["scores"] = {}
    return told


def theirs(name: str, folder: Path, seed: int, recipe: str) -> dict:
    """One run of an original."""
    script = str(Path(__file__).with_name("original.py"))
    return json.loads(output_of([sys.executable, script, name, str(folder), str(seed), recipe]).splitlines()[-1])


def quarters(losses: list[float]) -> list[float]:
    """The mean loss of the tenth of the run that ends at each quarter of it."""
    width = max(1, len(losses) // 10)
    return [statistics.fmean(losses[max(0, end - width) : end]) for end in (len(losses) * k // 4 for k in range(1, 5))]


def measure(name: str, folder: Path, seeds: int, threads: int) -> list[dict]:
    """Runs of both, in pairs: one for each seed."""
    pairs = []
    for seed in range(seeds):
        overrides = [f"seed={seed}", f"launch.threads={threads}", "evaluate.every=null", "checkpoint.every=null"]
        show = [sys.executable, "-m", "drivetrain", "recipe", "show", str(EXAMPLES / f"{name}.yaml"), "--json"]
        recipe = output_of([*show, *overrides])
        pair = {}
        for side in ("ours", "theirs") if seed % 2 == 0 else ("theirs", "ours"):
            pair[side] = ours(name, overrides) if side == "ours" else theirs(name, folder, seed, recipe)
        if pair["ours"]["parameters"] != pair["theirs"]["parameters"]:
            raise SystemExit(
                f"{name}: {pair['ours']['parameters']} parameters, and theirs {pair['theirs']['parameters']}"
            )
        pairs.append(pair)
        taken = {side: f"{pair[side]['seconds'] * 1e3:.2f} ms" for side in pair}
        print(name, seed, taken, file=sys.stderr, flush=True)
    return pairs


def spread(values: list[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def told(name: str, pairs: list[dict], own: Lines, other: Lines) -> list[str]:
    """A pair's lines for the page."""
    steps, parameters = pairs[0]["ours"]["steps"], pairs[0]["ours"]["parameters"]
    ratio = [pair["ours"]["seconds"] / pair["theirs"]["seconds"] for pair in pairs]
    seconds = [f"{steps * statistics.median(p[side]['seconds'] for p in pairs):.1f}" for side in ("ours", "theirs")]
    between = f"{statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})"
    cells = [name, f"{parameters:,}", own, other, f"{steps:,}", *seconds, between]
    rows = [f"| {' | '.join(map(str, cells))} |"]
    for key in ("losses", "generator"):
        if key in pairs[0]["ours"]:
            for side in ("ours", "theirs"):
                curves = zip(*(quarters(pair[side][key]) for pair in pairs), strict=True)
                final = [pair[side]["scores"]["loss"] for pair in pairs if pair[side]["scores"]]
                last = spread(final) if final else "-"
                rows.append(f"| {name} {key} | {side} | {' | '.join(map(spread, map(list, curves)))} | {last} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--pytorch-examples", type=Path, help="a clone of github.com/pytorch/examples")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("names", nargs="*", default=list(PAIRS))
    asked = parser.parse_args()
    results, first, rest = {}, [], []
    for name in asked.names:
        pair = PAIRS[name]
        folder = getattr(asked, pair.where)
        if folder is None:
            parser.error(f"{name} needs --{pair.where.replace('_', '-')} FOLDER")
        own = count([EXAMPLES / f"{name}.py", EXAMPLES / f"{name}.yaml"])
        other = count([folder / file for file in pair.files])
        results[name] = measure(name, folder.resolve(), asked.seeds, asked.threads)
        head, *losses = told(name, results[name], own, other)
        first.append(head)
        rest += losses
    print("| example | parameters | our lines | their lines | steps | our seconds | their seconds | ratio |")
    print("|---|---|---|---|---|---|---|---|", *first, sep="\n")
    print("\n| loss | of | at 1/4 | 1/2 | 3/4 | the end | validation |\n|---|---|---|---|---|---|---|", *rest, sep="\n")
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    (folder / "examples.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
