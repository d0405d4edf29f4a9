"""The examples beside the originals that they stand for, on the same data with the same settings, in turn.

    python benchmarks/examples/run.py --nanogpt FOLDER --pytorch-examples FOLDER

The folders are clones of github.com/karpathy/nanoGPT and github.com/pytorch/examples; nothing of them is kept here.
For each seed both train in turn, a few seconds each, so that both meet the same neighbours on the machine. Told are
lines, seconds of all steps without evaluations, pictures and commits (the ratio of neighbouring turns: median and
quartiles), and losses: of training, just before each quarter of the run, and of validation, at the end. It prints a
table, and writes all numbers to benchmarks/results/examples.json.
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

from in_turn import run_in_turn, step_times
from lines import Lines, count

from drivetrain import Result
from drivetrain.ledger.ledger import read

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RESULTS = ROOT / "benchmarks" / "results" / "examples.json"


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


def ours(name: str, run: Path) -> dict:
    """What a run of an example came to, as `original.py` says it of an original."""
    records, networks = list(read(run / "ledger.jsonl")), Result.load(run).networks()
    (scores,) = Result.load(run).metrics.values()
    spans, before = [], None
    for record in records:
        if record.kind == "step":
            if before is not None:
                spans.append((before, record.time))
            before = record.time
        elif record.kind in ("evaluation", "show"):
            before = None  # the next step's time is not its own alone
    steps = [record for record in records if record.kind == "step"]
    told = {
        "steps": len(steps),
        "spans": spans,
        "parameters": sum(weight.numel() for network in networks.values() for weight in network.parameters()),
        "losses": [sum(step.losses.values()) for step in steps],
        "scores": {"loss": scores["loss"] if "loss" in scores else sum(scores.values())},
    }
    if name == "dcgan":
        for network, key in (("discriminator", "losses"), ("generator", "generator")):
            told[key] = [step.losses[f"{network}.loss"] for step in steps]
        told["scores"] = {}
    return told


def quarters(losses: list[float]) -> list[float]:
    """The mean loss of the tenth of the run that ends at each quarter of it."""
    width = max(1, len(losses) // 10)
    return [statistics.fmean(losses[max(0, end - width) : end]) for end in (len(losses) * k // 4 for k in range(1, 5))]


def measure(name: str, folder: Path, seeds: int, threads: int) -> list[dict]:
    """Runs of both, in pairs: one for each seed."""
    pairs = []
    for seed in range(seeds):
        path = str(EXAMPLES / f"{name}.yaml")
        overrides = [f"seed={seed}", f"launch.threads={threads}", "evaluate.every=null", "checkpoint.every=null"]
        recipe = output_of([sys.executable, "-m", "drivetrain", "recipe", "show", path, "--json", *overrides])
        original = str(Path(__file__).with_name("original.py"))
        with tempfile.TemporaryDirectory() as beside:
            run = Path(beside) / "run"
            train = f"drivetrain.train({path!r}, {overrides!r}, run={str(run)!r}, progress=False)"
            commands = {
                "ours": [sys.executable, "-c", f"import drivetrain; {train}"],
                "theirs": [sys.executable, original, name, str(folder), str(seed), recipe],
            }
            slices = run_in_turn(commands, Path(beside))
            pair = {"ours": ours(name, run)}
            pair["theirs"] = json.loads((Path(beside) / "theirs.out").read_text().splitlines()[-1])
        if pair["ours"]["parameters"] != pair["theirs"]["parameters"]:
            raise SystemExit(f"{name}: not the same networks: {[pair[side]['parameters'] for side in pair]} parameters")
        pair["times"] = step_times(slices, {side: pair[side].pop("spans") for side in ("ours", "theirs")})
        pairs.append(pair)
        print(name, seed, f"{len(pair['times'])} turns", file=sys.stderr, flush=True)
    return pairs


def spread(values: list[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def told(name: str, pairs: list[dict], own: Lines, other: Lines) -> list[str]:
    """A pair's lines for the page."""
    steps, parameters = pairs[0]["ours"]["steps"], pairs[0]["ours"]["parameters"]
    times = [both for pair in pairs for both in pair["times"]]
    low, middle, high = statistics.quantiles([mine / other for mine, other in times], n=4)
    typical = [f"{steps * statistics.median(side):.0f}" for side in zip(*times, strict=True)]
    between = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    cells = [name, f"{parameters:,}", own, other, f"{steps:,}", *typical, between]
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
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))  # each time: it takes long
    print("| example | parameters | our lines | their lines | steps | our seconds | their seconds | ratio |")
    print("|---|---|---|---|---|---|---|---|", *first, sep="\n")
    print("\n| loss | of | at 1/4 | 1/2 | 3/4 | the end | validation |\n|---|---|---|---|---|---|---|", *rest, sep="\n")


if __name__ == "__main__":
    main()
