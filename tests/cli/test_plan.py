"""`drivetrain plan`."""

import json
import tempfile

import pytest
import yaml

import drivetrain
from conftest import run_under_supervisor
from drivetrain.cli.main import run as command
from drivetrain.ledger.run_summary import summary_of
from drivetrain.spec.exits import Exit

LARGE = {
    "name": "llama-70b",
    "task": {
        "kind": "language_model",
        "model": {
            "kind": "llama",
            "vocabulary": 128256,
            "width": 8192,
            "depth": 80,
            "heads": 64,
            "kv_heads": 8,
            "hidden": 28672,
            "context": 8192,
            "tied": False,
        },
    },
    "data": {"train": {"sources": [{"kind": "tokens", "path": "nowhere.bin"}]}},
    "batch": {"size": 1024, "micro": 1},
    "budget": {"tokens": "1500B"},
    "precision": "bf16",
    "activations": "recompute",
    "parallel": {"replicate": 2, "shard": 64, "tensor": 8},
    "optimizer": {"kind": "adamw", "lr": 1.5e-4},
    "schedule": {"kind": "constant"},
}


@pytest.fixture
def planned(tmp_path, capfd):
    """What a plan says: its exit code, its JSON (or lines), and stderr."""

    def plan(tree, *arguments, as_json=True):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(tree))
        code = command(["plan", str(path), *arguments, *(["--json"] if as_json else [])])
        said = capfd.readouterr()
        return code, json.loads(said.out) if as_json and code == 0 else said.out, said.err

    return plan


@pytest.mark.timeout(300)
def test_70_billion_parameters_on_1024_processes(planned, tmp_path):
    picture = tmp_path / "memory.svg"
    code, found, _ = planned(LARGE, "--chip", "H100", "--price", "2", "--picture", str(picture), "--no-data")
    assert code == Exit.DONE
    assert found["processes"] == 1024
    assert found["networks"]["model"]["parameters"] == 70_553_706_496
    assert found["length"]["steps"] == 178_814
    # Weights, gradients and two moments, of fp32: each rank holds an equal part of them, but for norms.
    step = found["memory"]["step"]
    assert step["weights"] + step["optimizer"] == pytest.approx(12 * 70_553_706_496 / 512, rel=0.01)
    assert step["gradients"] == pytest.approx(
        4 * 70_553_706_496 / 8, rel=0.02
    )  # they add up whole until the last micro-batch
    assert found["commit"]["bytes"] == pytest.approx(12 * 70_553_706_496, rel=1e-6)
    assert found["memory"]["limit"] == 80e9
    (time,) = found["time"]
    assert time["whole"] == pytest.approx(found["flops"]["model"] * 178_814 / (0.4 * found["flops"]["peak"]), rel=1e-4)
    assert time["cost"] == pytest.approx(time["whole"] / 3600 * 1024 * 2)
    assert "assumed" in time["source"]
    drawn = picture.read_text()
    assert drawn.startswith("<svg")
    assert "llama-70b" in drawn
    assert "activations" in drawn


def test_what_does_not_fit_is_told_with_the_nearest_that_does(tiny, planned):
    tiny["task"]["model"] |= {"context": 256, "width": 32}
    tiny |= {"batch": {"size": 8, "micro": 8}}
    _, found, _ = planned(tiny, "--no-data")
    limit = found["memory"]["taken"] * 0.6
    code, _, said = planned(tiny, "--no-data", "--memory", f"{limit / 1e3:.0f}KB")
    assert code == Exit.BAD_RECIPE
    assert "nearest that fits" in said
    setting = said.partition("nearest that fits: ")[2]
    chosen = [word.strip("'") for word in setting.split() if "=" in word]
    overrides = [word for word in chosen if word.startswith(("batch", "activations"))]
    code, found, _ = planned(tiny, *overrides, "--no-data", "--memory", f"{limit / 1e3:.0f}KB")
    assert code == Exit.DONE
    assert found["memory"]["taken"] <= limit + 1e3


def test_for_people_it_says_the_passes_and_what_is_not_known(tiny, planned):
    code, told, _ = planned(tiny, as_json=False)
    assert code == Exit.DONE
    assert "passes over the data" in told
    assert "live tensors" in told
    assert "not known: say --chip, --like a run, or --measure" in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--rank", "5"], Exit.BAD_COMMAND, "--rank 5: of 1 processes ranks are 0 to 0"),
        (["--rank", "-1"], Exit.BAD_COMMAND, "--rank -1"),
        (["--chip", "H100", "--mfu", "0"], Exit.BAD_COMMAND, "--mfu 0.0: it is a share"),
        (["--chip", "H100", "--mfu", "nan"], Exit.BAD_COMMAND, "--mfu nan"),
        (["--price", "nan"], Exit.BAD_COMMAND, "--price nan: it is an amount"),
        (["--price", "-1"], Exit.BAD_COMMAND, "--price -1.0"),
        (["--search", "--seconds", "nan"], Exit.BAD_COMMAND, "--seconds nan: a search takes some"),
        (["--processes", "0"], Exit.BAD_RECIPE, "launch.processes"),
    ],
)
def test_numbers_that_no_run_could_have_are_named(tiny, planned, arguments, code, said):
    found, _, told = planned(tiny, "--no-data", *arguments)
    assert found == code
    assert said in told


def test_a_mesh_that_is_not_there_and_a_run_without_steps_are_named(tiny, planned, tmp_path):
    code, _, said = planned(tiny, "--processes", "3", "--no-data")
    assert code == Exit.BAD_RECIPE
    assert "3 do not share 4 lanes" in said
    code, _, said = planned(tiny, "--no-data", "--chip", "abacus")
    assert code == Exit.BAD_COMMAND
    assert "not in the table" in said


def test_a_simulation_says_goodput_up_to_16384_processes_and_what_it_follows_from(tiny, planned):
    assumed = ["--assume", "step=5", "--assume", "commit=3", "--assume", "writing=60"]
    code, found, _ = planned(tiny, "--simulate", *assumed)
    assert code == Exit.DONE
    sizes = {row["processes"]: row for row in found["sizes"]}
    assert {1, 16384} <= sizes.keys()
    assert sizes[16384]["nodes"] == 2048
    assert sizes[1]["best"]["goodput"] > sizes[16384]["best"]["goodput"] > sizes[16384]["asked"]["per_machine"] > 0
    assert found["setting"] == {"interval": 5, "keep": 3, "spares": 0}
    known = found["assumptions"]
    assert known["step"] == {"value": 5.0, "origin": "--assume"}
    assert "Llama 3" in known["failures"]["origin"]
    assert all(each["origin"] for each in known.values())
    _, again, _ = planned(tiny, "--simulate", *assumed)
    assert again == found
    _, other, _ = planned(tiny, "--simulate", *assumed, "--seed", "1")
    assert other["sizes"] != found["sizes"]


@pytest.mark.timeout(300)
def test_a_simulation_takes_what_another_run_has_cost(tiny, planned, tmp_path, importable):
    run = tmp_path / "run"
    run_under_supervisor(tiny, run)
    code, said, _ = planned(tiny, "--simulate", "--like", str(run), "--assume", "failures=0.01", as_json=False)
    assert code == Exit.DONE
    lines = said.splitlines()
    (step,) = [line for line in lines if line.startswith("step ")]
    assert f"11 steps of {run}" in step
    assert any(line.startswith("   16,384 ") for line in lines)
    assert any("checkpoint.every=" in line for line in lines)
    assert any(line.startswith("not modelled: ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), Exit.INPUT_MISSING, "nothing says how long a step takes"),
        (("--assume", "steps=3"), Exit.BAD_COMMAND, "there is no 'steps'"),
        (("--assume", "step=0"), Exit.BAD_COMMAND, "not negative"),
        (("--assume", "commit=-1"), Exit.BAD_COMMAND, "not negative"),
        (("--assume", "step=nan"), Exit.BAD_COMMAND, "not negative"),
        (("--assume", "step=1", "--assume", "damaged=1"), Exit.BAD_COMMAND, "a share"),
        (("--like", "nowhere"), Exit.INPUT_MISSING, "nowhere"),
    ],
)
def test_what_a_simulation_does_not_know_or_cannot_take_is_named(tiny, planned, arguments, code, said):
    found, _, told = planned(tiny, "--simulate", *arguments)
    assert found == code
    assert said in told


TARGETS = {
    "cluster": {"kind": "slurm", "nodes": 2, "processes": 2, "memory": "1G"},
    "small": {"kind": "slurm", "memory": "1M"},
    "gpus": {"kind": "slurm", "nodes": 2, "processes": 2, "accelerators": 2, "accelerator": "h100"},
}


def test_a_target_says_how_many_processes_there_are_and_what_each_may_take(tiny, planned, tmp_path):
    path = tmp_path / "targets.yaml"
    path.write_text(yaml.safe_dump(TARGETS))
    asked = ["--targets", str(path), "--no-data", "--to"]
    _, found, _ = planned(tiny, *asked, "cluster")
    assert (found["processes"], found["mesh"]) == (4, "replicate 4")
    assert found["memory"]["limit"] == 512 << 20
    assert found["memory"]["limit_source"] == "target cluster, of 1G for 2 processes"
    _, found, _ = planned(tiny, *asked, "gpus")
    assert (found["processes"], found["memory"]["limit_source"]) == (4, "--chip H100")
    assert "H100" in found["time"][0]["source"]
    tiny["task"]["model"] |= {"width": 128}
    code, _, said = planned(tiny, *asked, "small")
    assert code == Exit.BAD_RECIPE
    assert "target small, of 1M for 1 processes has 1.0 MB" in said
    code, _, said = planned(tiny, *asked, "elsewhere")
    assert code == Exit.BAD_COMMAND
    assert "there are local, cluster, gpus, small" in said


def test_another_run_and_steps_made_here_say_how_long_it_takes_and_what_it_costs(tiny, planned, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "temporary").mkdir()
    run = drivetrain.train(tiny, run=tmp_path / "run", progress=False).run
    tiny |= {"budget": {"steps": 50_000}}
    code, found, _ = planned(tiny, "--like", str(run), "--measure", "--price", "3", "--no-data")
    assert code == Exit.DONE
    measured, like = found["time"]
    assert measured["source"] == "--measure: the last 15 of 20 steps on one process here"
    assert like["source"] == f"the last steps of {run}"
    rate = summary_of(run).throughput(100).samples_per_second
    assert like["whole"] == pytest.approx(400_000 / rate)
    for each in found["time"]:
        assert each["step"] == pytest.approx(each["whole"] / 50_000)
        assert each["samples_per_second"] == pytest.approx(400_000 / each["whole"])
        assert each["cost"] == pytest.approx(each["whole"] / 3600 * 3)
    assert list((tmp_path / "temporary").iterdir()) == []
    _, told, _ = planned(tiny, "--like", str(run), "--no-data", as_json=False)
    assert f"tokens/s: by the last steps of {run}" in told


def test_steps_that_fail_and_a_run_without_any_are_named(tiny, planned, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ledger.jsonl").touch()
    code, _, said = planned(tiny, "--no-data", "--like", str(tmp_path / "run"))
    assert code == Exit.INPUT_MISSING
    assert "no step of it is in its ledger" in said
    code, _, said = planned(tiny, "--no-data", "--measure", "optimizer.lr=1e38")
    assert code == Exit.DIVERGED
    assert "--measure: " in said
