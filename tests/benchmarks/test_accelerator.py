"""The checks that need a device: on a CPU they run reduced, a crash or a hang is one failed line, and shares add up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerator import command
from accelerator.check import Found
from accelerator.profile import Kernel, accounts, covered, group_of

pytestmark = [pytest.mark.xdist_group("accelerator"), pytest.mark.timeout(300)]


def test_some_checks_run_reduced_on_a_cpu(tmp_path, capfd):
    asked = ["fp16", "vote", "graphs", "mesh one process", "mesh replicate 2 shard 2"]
    assert command.main(["--device", "cpu", "--json", str(tmp_path / "found.json"), "--only", *asked]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    verdicts = {row["name"]: row["verdict"] for row in found["checks"]}
    applies = ["mesh one process", "fp16"]
    assert verdicts == {name: "passed" if name in applies else "not applicable" for name in verdicts}
    assert set(verdicts) == set(asked)
    by_name = {row["name"]: row for row in found["checks"]}
    assert by_name["mesh one process"]["figures"]["equal_tensors"] > 50
    assert by_name["mesh replicate 2 shard 2"]["why"].startswith("needs 4 processes")
    assert all(row["why"] for row in found["checks"] if row["verdict"] == "not applicable")
    told = capfd.readouterr().out.splitlines()
    assert told[0].endswith("reduced: no device")
    assert told[-1] == "2 passed, 0 failed, 3 not applicable"


def test_a_check_or_a_device_that_is_not_there_is_said_so(capfd):
    assert command.main(["--only", "meshes"]) == 64
    assert "no check 'meshes'" in capfd.readouterr().err
    assert command.main(["--device", "xpu", "--only", "vote"]) == 1
    assert "no device could be looked at: --device xpu" in capfd.readouterr().err


def test_wheels_that_are_missing_are_named(monkeypatch, capfd):
    monkeypatch.setattr(command, "find_spec", lambda module: None if module in ("yaml", "rich") else module)
    assert command.main(["--only", "vote"]) == 66
    assert "lacks PyYAML, rich: pip install PyYAML rich" in capfd.readouterr().err


def test_whatever_a_check_does_is_one_line(importable, tmp_path, capfd):
    told = tmp_path / "found.json"
    assert command.main(["--device", "cpu", "--checks", "own_checks", "--json", str(told)]) == 1
    rows = {row["name"]: (row["verdict"], row["why"]) for row in json.loads(told.read_text())["checks"]}
    assert rows == {
        "works": ("passed", ""),
        "wrong": ("failed", "3 of 4 bits"),
        "skipped": ("not applicable", "no device"),
        "broken": ("failed", "KeyError: 'name'"),
        "killed": ("failed", "its process ended with SIGKILL"),
        "hangs": ("failed", "not done after 3 s"),
    }
    assert len(capfd.readouterr().out.splitlines()) == 2 + len(rows)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", "elementwise"),
        ("triton_red_fused_rms_norm_0", "sums"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_mul_3", "elementwise"),
        ("triton_tem_fused_mm_1", "products"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("something_new", "other"),
    ],
)
def test_kernels_are_told_apart_by_their_names(name, group):
    assert group_of(name) == group


def test_shares_of_a_step_add_up_and_name_what_is_missing():
    kernels = [Kernel("gemm", 0, 60), Kernel("flash", 60, 70), Kernel("ncclDev", 65, 80), Kernel("fused_adam", 90, 100)]
    found = accounts(kernels, 50.0)
    assert found == pytest.approx(
        {"MFU": 0.5, "slower products": 0.2, "communication": 0.15, "optimizer": 0.1, "gaps": 0.1, "overlap": -0.05}
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12))
def test_what_is_covered_is_counted_once(spans):
    kernels = [Kernel("gemm", start, start + length) for start, length in spans]
    moments = {at for start, length in spans for at in range(start, start + length)}
    assert covered(kernels) == len(moments)
    assert sum(accounts(kernels, 3.0).values()) == pytest.approx(1.0)


def test_a_line_has_the_name_the_verdict_the_reason_and_the_figures():
    found = Found("mesh shard 2", "failed", 12.3, "other bits", {"off": 0.0123456, "by": {"a": 1.0}})
    assert found.line() == "mesh shard 2                       failed (other bits)  off 0.01235, by {a 1}  [12 s]"
