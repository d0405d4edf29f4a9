import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

import adversarial
from conftest import trace
from drivetrain.cli.main import run as command


@pytest.fixture
def recipe(tiny, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return str(path)


def drivetrain(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "drivetrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        **options,
    )


def test_train_evaluate_report_and_export(recipe, tmp_path):
    run = str(tmp_path / "run")
    done = drivetrain("train", recipe, "optimizer.lr=1e-3", "--run", run)
    assert done.returncode == 0, done.stderr
    assert "step 12/12" in done.stdout
    assert "evaluation at step 12  dogs" in done.stdout
    assert f"drivetrain report {run}" in done.stdout
    assert done.stderr == ""
    scores = json.loads(drivetrain("evaluate", run, "--json").stdout)
    told = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    last = [record for record in told if record["kind"] == "evaluation"][-1]
    assert scores["metrics"]["dogs"] == pytest.approx(last["metrics"]["dogs"], rel=1e-6)
    assert json.loads(drivetrain("report", run, "--json").stdout)["steps"] == 12
    assert drivetrain("export", run, "--to", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_default_run_directory_is_named_by_what_decides_the_bits(recipe, tmp_path):
    for overrides in ([], ["launch.processes=2"], ["seed=1"]):
        assert drivetrain("train", recipe, *overrides, cwd=tmp_path).returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_ctrl_c_and_the_same_command_again(recipe, tmp_path):
    train = ("train", recipe, "budget.steps=100", "checkpoint.every.steps=50", "evaluate.every=null", "--run")
    command_line = [sys.executable, "-m", "drivetrain", *train, str(tmp_path / "run")]
    process = subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ledger = tmp_path / "run" / "ledger.jsonl"
    while not ledger.exists() or ledger.read_bytes().count(b'"kind":"step"') < 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "go on" in out
    assert err.splitlines()[-1].startswith("drivetrain: 75 stopped and committed")
    assert drivetrain(*train, str(tmp_path / "run")).returncode == 0
    assert drivetrain(*train, str(tmp_path / "straight")).returncode == 0
    assert trace(tmp_path / "run") == trace(tmp_path / "straight")


def test_torchruns_workers_take_their_places(recipe, tmp_path):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    line = [sys.executable, "-m", "drivetrain", "train", recipe, "--run", str(tmp_path / "run")]
    ranks = [subprocess.Popen(line, env=os.environ | place | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["code"] == 0
    assert drivetrain("train", recipe, "launch.processes=2", "--run", str(tmp_path / "ours")).returncode == 0
    assert trace(tmp_path / "run") == trace(tmp_path / "ours")


def test_torchrun_itself(recipe, tmp_path):
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        "drivetrain",
    ]
    done = subprocess.run(
        [*line, "train", recipe, "parallel.shard=2", "--run", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["class"] == "done"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["trian"], 64, "Did you mean 'train'"),
        (["train"], 64, "Missing argument"),
        (["train", "quickstart", "--procesess", "2"], 64, "--processes"),
        (["train", "quickstart", "--procesess", "2"], 64, "`drivetrain train --help`"),
        (["recipe", "schema", "optimiser"], 64, "did you mean 'optimizer'"),
        (["train", "quickstart", "--resume", "maybe"], 64, "auto, never or must"),
        (["train", "quickstrat"], 66, "did you mean 'quickstart'"),
        (["train", "quickstart", "optimizer.lr=x"], 78, "valid number"),
        (["report", "/nowhere"], 66, "no ledger"),
        (["evaluate", "/nowhere"], 66, "no run at"),
        (["recipe", "show", "/tmp"], 66, "no run directory"),
        (["data", "inspect", "quickstart", "--position", "9" * 23], 64, "less than or equal to"),
        (["data", "inspect", "quickstart", "--step", "9" * 23], 64, "less than or equal to"),
        (["data", "inspect", "quickstart", "--count", "9" * 23], 64, "less than or equal to"),
    ],
)
def test_what_is_wrong_is_told_on_the_last_line_with_its_code(arguments, code, words, capsys):
    assert command(arguments) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[-1].startswith(f"drivetrain: {code} ")


@pytest.mark.parametrize("verb", ["report", "verify"])
def test_a_ledger_that_is_no_file_is_74_without_a_traceback(verb, tmp_path, capsys):
    (tmp_path / "ledger.jsonl").mkdir()
    assert command([verb, str(tmp_path)]) == 74
    (line,) = capsys.readouterr().err.splitlines()
    assert "the ledger cannot be opened" in line


def test_recipe_commands(tmp_path, capsys):
    assert command(["recipe", "list", "--json"]) == 0
    assert "quickstart" in json.loads(capsys.readouterr().out)
    assert command(["recipe", "new", str(tmp_path / "mine.yaml")]) == 0
    assert command(["recipe", "new", str(tmp_path / "mine.yaml")]) == 73
    assert command(["recipe", "check", str(tmp_path / "mine.yaml")]) == 0
    capsys.readouterr()
    assert command(["recipe", "show", str(tmp_path / "mine.yaml"), "seed=4"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 4
    assert command(["recipe", "show", "quickstart", "--origin"]) == 0
    assert "# default" in capsys.readouterr().out
    assert command(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Drivetrain recipe"
    assert command(["recipe", "schema", "batch"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["size"]["affects"] == "bits"
    assert command(["recipe", "check", "quickstart", "sed=1", "--json"]) == 78
    assert json.loads(capsys.readouterr().out)["mistakes"][0]["path"] == "sed"
    assert command(["recipe", "check", "quickstart", "optimizer.kind=sgd", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert "optimizer.weight_decay" in note
    assert command(["recipe", "check", "quickstart", "optimizer.kind=sgd"]) == 0
    assert capsys.readouterr().out.startswith(note)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def __init__(self, widht: int): ...", "unknown key 'width'; did you mean 'widht'?"),
        ("oops", "its import fails: NameError"),
    ],
)
def test_recipe_check_reads_classes_of_the_users_own(body, words, recipe, tmp_path, capsys):
    module = f"own_{len(body)}"
    (tmp_path / f"{module}.py").write_text(f"class Mine:\n    networks = loss = None\n    {body}\n")
    contexts = ["data.train.sources[0].context=16", "data.validation.dogs.context=16"]
    own = ["recipe", "check", recipe, f"task.kind={module}:Mine", "task.width=3", *contexts]
    assert command(own) == 78
    assert words in capsys.readouterr().err
    assert command([*own, "--json"]) == 78
    assert words in json.loads(capsys.readouterr().out)["mistakes"][0]["message"]


def test_inspect_names_the_source(recipe, capsys):
    assert command(["data", "inspect", recipe, "data.train.sources[0].name=cats"]) == 0
    assert " of source cats" in capsys.readouterr().out


@pytest.mark.cold
def test_help_imports_neither_torch_nor_pydantic():
    code = (
        "import sys\nfrom drivetrain.cli.main import run\nrun(['--help'])\n"
        "assert not {'torch', 'pydantic', 'numpy', 'yaml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("importable")
def test_trainloop_2_a_standard_input_that_is_closed_is_no_error(tmp_path):
    (tmp_path / "gan.yaml").write_text(yaml.safe_dump(adversarial.recipe()))
    command = [sys.executable, "-m", "drivetrain", "train", str(tmp_path / "gan.yaml"), "--run", str(tmp_path / "run")]
    closed = ["bash", "-c", 'exec "$@" <&-', "bash", *command]
    result = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert trace(tmp_path / "run") == trace(adversarial.train(adversarial.recipe(), tmp_path / "here").run)
