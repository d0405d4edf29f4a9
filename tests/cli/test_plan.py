"""`drivetrain plan`."""

import json

import pytest
import yaml

from conftest import run_under_supervisor
from drivetrain.cli.main import run as command
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
    assert "not known: say --chip, or --like a run" in told


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
