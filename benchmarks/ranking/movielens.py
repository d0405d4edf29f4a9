"""The MovieLens job whole, from the command to the last score: `python benchmarks/ranking/movielens.py DATA`.

DATA is a folder with `ml-100k.inter`, `ml-100k.user` and `ml-100k.item`, as RecBole ships them. The recipe
`movielens` is trained by its command, as a user does it: eight features of 16 numbers, DeepFM, four epochs of 80,000
ratings in batches of 512, scored and committed after each. `--clone FOLDER`, a clone of TorchEasyRec's repository,
puts the same job of TorchEasyRec beside it, in turn: its model, its reader of Parquet, its optimizers at the same
sizes, and a split and ids of its own that are made before the clock starts. It is in no registry, and three packages
that it imports come from nowhere but its makers' storage (`pyfg`, `graphlearn`, `common_io`): they are stood for by
empty modules, of which this job calls nothing (`fg_mode: FG_NONE`, no sampler, no table of MaxCompute). It gets an
environment of its own.
"""

import argparse
import csv
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from environments import FOLDER, environment  # noqa: E402

FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")
WANTED = (
    *("numpy", "pandas", "anytree", "scikit-learn", "tensorboard<2.18", "psutil", "fsspec", "confluent-kafka"),
    *("packaging", "pyodps==0.12.5.1", "alibabacloud_credentials<2,>=1.0.2", "faiss-cpu", "grpcio-tools<1.63"),
    *("torchmetrics==1.0.3", "tensordict", "pyre-extensions", "iopath", "tqdm", "pyarrow", "safetensors"),
    "setuptools<81",
)
AS_THEY_ARE = ("fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0")
"""What asks for another torch than there is for a CPU."""
ABSENT = ("pyfg.py", "common_io.py", "graphlearn/__init__.py", "graphlearn/python/data/values.py")
STANDS_IN = """class Absent(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name, (), {})


def __getattr__(name):
    return Absent.__getattr__(Absent, name)
"""
IDS = ("user", "item", "age", "gender", "occupation", "zip", "year", "genres")


class Job(NamedTuple):
    """Seconds of the clock and of all processes' work, and the AUC of the last evaluation."""

    clock: float
    work: float
    auc: float
    told: str


def timed(command: list[str], folder: Path, settings: dict[str, str]) -> tuple[float, float]:
    """Seconds of the clock, and of the work of a command and all that it starts."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(folder: Path) -> Job:
    """`drivetrain train movielens` in a new run directory."""
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        drivetrain, run = [sys.executable, "-m", "drivetrain"], str(Path(runs, "run"))
        clock, work = timed([*drivetrain, "train", "movielens", "--run", run], folder, dict(os.environ))
        report = json.loads(subprocess.check_output([*drivetrain, "report", run, "--json"], cwd=folder))
    spent = report["seconds"]
    told = ", ".join(f"{name} {spent[name]:.1f}" for name in ("start", "step", "evaluation", "commit"))
    return Job(clock, work, report["metrics"]["ratings.auc"], f"{told} s")


def theirs(python: Path, clone: Path, folder: Path) -> Job:
    """The same job of TorchEasyRec's."""
    paths = os.pathsep.join([str(clone), str(clone / "stands-in")])
    settings = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(os.cpu_count())}
    with tempfile.TemporaryDirectory(dir=folder) as run:
        command = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        command += ["-m", "tzrec.train_eval", "--pipeline_config_path", "job.config", "--model_dir", run]
        clock, work = timed(command, folder, settings)
        scores = Path(run, "train_eval_result_v2.txt").read_text().splitlines()
    return Job(clock, work, json.loads(scores[-1])["auc"], f"{len(scores)} evaluations")


def rows(path: Path) -> list[list[str]]:
    """Of a table with tabs between, without its first line."""
    with path.open(encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def write_job(data: Path, folder: Path) -> None:
    """Ids as Parquet, in a random order and cut 80 to 20, and the configuration."""
    ratings, users, items = (rows(data / name) for name in FILES)
    by_user, by_item = {each[0]: each for each in users}, {each[0]: each for each in items}
    columns: dict[str, list] = {name: [] for name in IDS}
    for user, item, *_ in ratings:
        _, age, gender, occupation, code = by_user[user]
        _, _, year, genres = by_item[item]
        for name, value in zip(IDS, (user, item, age, gender, occupation, code, year, genres.split()), strict=True):
            columns[name].append(value)
    numbered, sizes = {}, {}
    for name, values in columns.items():
        flat = [one for value in values for one in (value if name == "genres" else [value])]
        places = {value: place for place, value in enumerate(sorted(set(flat)))}
        sizes[name] = len(places)
        numbered[name] = [[places[one] for one in value] if name == "genres" else places[value] for value in values]
    table = pa.table(numbered | {"label": [int(float(rating[2]) >= 4) for rating in ratings]})
    order, cut = np.random.default_rng(0).permutation(len(ratings)), len(ratings) * 4 // 5
    parquet.write_table(table.take(order[:cut]), folder / "train.parquet")
    parquet.write_table(table.take(order[cut:]), folder / "test.parquet")
    (folder / "job.config").write_text(configuration(sizes))


def configuration(sizes: dict[str, int]) -> str:
    """The job in TorchEasyRec's words."""
    features = [
        f'feature_configs {{ id_feature {{ feature_name: "{name}" num_buckets: {size} embedding_dim: 16 }} }}'
        for name, size in sizes.items()
    ]
    names = " ".join(f'feature_names: "{name}"' for name in sizes)
    groups = [
        f'feature_groups {{ group_name: "{group}" {names} group_type: {kind} }}'
        for group, kind in (("wide", "WIDE"), ("fm", "DEEP"), ("deep", "DEEP"))
    ]
    return "\n".join(
        [
            'train_input_path: "train.parquet" eval_input_path: "test.parquet" model_dir: "run"',
            "train_config { num_epochs: 4 save_checkpoints_epochs: 1",
            "  sparse_optimizer { adagrad_optimizer { lr: 0.05 } constant_learning_rate {} }",
            "  dense_optimizer { adam_optimizer { lr: 0.001 } constant_learning_rate {} } }",
            "eval_config {}",
            "data_config { batch_size: 512 eval_batch_size: 4096 dataset_type: ParquetDataset fg_mode: FG_NONE",
            '  label_fields: "label" num_workers: 1 shuffle: true }',
            *features,
            "model_config {",
            *groups,
            "  deepfm { deep { hidden_units: [256, 128] } final { hidden_units: [64] } }",
            "  metrics { auc {} } losses { binary_cross_entropy {} } }",
        ]
    )


def prepared(clone: Path) -> tuple[Path, Path]:
    """A Python that has what TorchEasyRec needs, and its newest commit with its messages compiled."""
    python = environment("torcheasyrec", *WANTED)
    pip = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "--no-deps", *AS_THEY_ARE], check=True)
    to = FOLDER / "torcheasyrec" / "clone"
    if not (to / "tzrec").exists():
        to.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["git", "-C", clone, "archive", "HEAD", "tzrec"], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(to)], input=packed.stdout, check=True)
    protos = sorted(str(path.relative_to(to)) for path in (to / "tzrec" / "protos").rglob("*.proto"))
    compiler = [str(python), "-m", "grpc_tools.protoc", "-I", ".", "--python_out=.", "--pyi_out=."]
    subprocess.run([*compiler, *protos], cwd=to, check=True)
    for name in ABSENT:
        path = to / "stands-in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STANDS_IN)
    return python, to


def show(name: str, jobs: list[Job]) -> None:
    clocks, works = [job.clock for job in jobs], [job.work for job in jobs]
    print(
        f"{name}: {statistics.median(clocks):.1f} s ({min(clocks):.1f} to {max(clocks):.1f}), "
        f"work of all processes {statistics.median(works):.1f} s ({min(works):.1f} to {max(works):.1f}), "
        f"AUC {jobs[-1].auc:.4f}; {jobs[-1].told}"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("data", type=Path)
    asked.add_argument("--clone", type=Path, help="of TorchEasyRec's repository; without it ours is timed alone")
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "ml-100k").symlink_to(given.data.resolve())
        ways: dict[str, Callable[[], Job]] = {"drivetrain": lambda: ours(folder)}
        if given.clone is None:
            print("TorchEasyRec is left out: it is in no registry, and --clone names no clone of its repository")
        else:
            python, clone = prepared(given.clone)
            write_job(given.data, folder)
            (version,) = re.findall(r'__version__ = "(.*)"', (clone / "tzrec" / "version.py").read_text())
            ways[f"TorchEasyRec {version}"] = lambda: theirs(python, clone, folder)
        jobs: dict[str, list[Job]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, way in ways.items():
                jobs[name].append(way())
        print(f"load {os.getloadavg()[0]:.1f}")
        for name, own in jobs.items():
            show(name, own)


if __name__ == "__main__":
    main()
