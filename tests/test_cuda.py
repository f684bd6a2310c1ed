"""What only a GPU can show: every flag of a setting runs there, and running out of its memory is an outcome."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker import Extent, Setting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HERE = Path(__file__).parent / "workloads" / "small.py"
FEW = Extent(batches=4, warmup=2)


def run(mode: Any, extent: Extent = FEW, **setting: Any) -> stoker.Trial:
    source = stoker.Named(spec="resnet18", data="device")
    return stoker.profile(source, Setting(batch_size=16, **setting), extent, mode=mode, device="cuda")


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    "setting",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"channels_last": True},
        {"cudnn_benchmark": True},
        {"compile": True},
        {"precision": "bf16", "channels_last": True, "cudnn_benchmark": True},
    ],
    ids=lambda setting: "+".join(setting),
)
def test_every_flag_runs_on_a_gpu(mode: Any, setting: dict[str, Any]) -> None:
    trial = run(mode, **setting)
    assert trial.outcome == "done", trial.problem
    assert trial.workload.device == "cuda:0"
    assert len(trial.stages["forward"].samples_s) == 6
    assert ("backward" in trial.stages) == (mode == "train")
    assert trial.peaks["allocated_bytes"] > 0


def test_half_precision_needs_less_memory() -> None:
    full, half = run("train"), run("train", precision="bf16")
    assert half.peaks["allocated_bytes"] < full.peaks["allocated_bytes"]


def test_running_out_of_device_memory_is_an_outcome() -> None:
    source = stoker.Named(spec="vit_l_16", data="device")
    trial = stoker.profile(source, Setting(batch_size=8192), Extent(batches=1, warmup=0), mode="train", device="cuda")
    assert trial.outcome == "oom", trial.problem
    assert trial.problem is not None
    assert "device memory" in trial.problem.sentence
    assert trial.problem.remedy


def test_gauges_of_the_gpu_are_read() -> None:
    trial = run("train", Extent(batches=400, warmup=2))
    assert {"gpu_utilisation", "gpu_memory_bytes"} <= set(trial.gauges)


def test_doctor_describes_the_gpu() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    machine = json.loads(ran.stdout)
    assert machine["gpus"][0]["memory_total_bytes"] > 2**30
    assert machine["cuda"]["usable"]
