"""The command as people run it: a process, its output, its exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commands import Done, apart, here

PLANTED = Path(__file__).parents[1] / "workloads" / "planted.py"


def document(*arguments: str, given: Callable[..., Done] = here) -> dict[str, Any]:
    done = given(*arguments, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*arguments: str, status: int = 1) -> str:
    """The one sentence of a command that fails, checked to be one."""
    done = here(*arguments, "--quiet")
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    return done.stderr.strip()


def test_doctor_describes_this_machine() -> None:
    found = document("doctor", given=apart)
    assert found["cpu"]["usable"] <= found["cpu"]["logical"]
    assert found["host"]["limit_bytes"] > 0
    assert found["software"]["torch"]
    table = here("doctor", "--quiet").stdout
    assert "CPUs to use" in table
    assert max(len(line) for line in table.splitlines()) <= 100


def test_profile_of_a_users_own_function_as_json(tmp_path: Path) -> None:
    saved = tmp_path / "trial.json"
    arguments = ("--batch-size", "4", "--workers", "2", "--batches", "6", "--device", "cpu", "--save", str(saved))
    found = document("profile", f"{PLANTED}:planted", *arguments)
    assert found["outcome"] == "done"
    assert {"workload", "setting", "machine", "items", "total_s", "start_s", "first_batch_s", "items_per_s"} <= set(
        found
    )
    assert found["setting"]["batch_size"] == 4
    stages = found["stages"]
    assert {"samples_s", "total_s", "share"} <= set(stages["read"])
    loop = [stage["share"] for stage in stages.values() if stage["clock"] == "loop"]
    assert sum(loop) == pytest.approx(1)
    judged = found["verdict"]  # on a machine that other tests keep busy, batches that are ready may arrive late
    assert judged["bottleneck"] in {"step", "transform"} or (judged["uncertain"] and judged["bottleneck"] == "send")
    assert json.loads(saved.read_text()) == found


def test_profile_of_the_embedded_workload_as_a_table() -> None:
    arguments = ("--mode", "infer", "--batch-size", "4", "--workers", "1", "--batches", "3", "--device", "sleep:5ms")
    done = here("profile", "resnet18", *arguments)
    assert done.returncode == 0, done.stderr
    for word in ("first batch", "decode", "Resize", "Normalize", "items/s", "Bottleneck"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100
    assert "running" in done.stderr


def test_a_model_that_returns_its_loss_trains_if_an_optimizer_is_given() -> None:
    pytest.importorskip("transformers")
    found = document(
        "profile", f"{PLANTED.parent / 'huggingface.py'}:fine_tuning", "-b", "4", "--batches", "3", "--device", "cpu"
    )
    assert (found["workload"]["mode"], found["workload"]["mode_reason"]) == ("train", "it has an optimizer")
    assert {"forward", "backward", "update"} <= set(found["stages"])
    assert all(found["stages"][name]["total_s"] > 0 for name in ("forward", "backward", "update"))


def test_stalls_are_told_apart(tmp_path: Path) -> None:
    arguments = ("--mode", "infer", "--batch-size", "8", "--batches", "4", "--device", "sleep:1ms", "--items", "64")
    found = document("profile", "resnet18", "--stalls", *arguments)
    assert 0 <= found["preparation_share"] <= 1
    assert 0 <= found["fetch_share"] <= 1
    assert set(found["trials"]) == {"memory", "cached", "cold"}
    assert "stall" in here("profile", "resnet18", "--stalls", *arguments, "--quiet").stdout


def test_what_a_workload_prints_stays_out_of_the_document() -> None:
    options = ("--batches", "2", "--device", "cpu")
    assert document("profile", f"{PLANTED}:talks", *options, given=apart)["outcome"] == "done"


# ---------------------------------------------------------------- bad input


def test_no_such_file() -> None:
    assert "no_such.py" in refused("profile", "no_such.py:workload")


def test_no_such_function_lists_what_there_is() -> None:
    sentence = refused("profile", f"{PLANTED}:wrkload")
    assert "no function 'wrkload'" in sentence
    assert "planted" in sentence


def test_no_such_model_suggests_the_nearest() -> None:
    assert "resnet18" in refused("profile", "resnet81")


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "ants").mkdir()
    assert "no images" in refused("profile", "resnet18", "--data", str(tmp_path))


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    for number in range(6):
        (tmp_path / "ants").mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "ants" / f"{number}.jpg")
    broken = tmp_path / "ants" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:900])
    for workers in ("0", "2"):
        arguments = ("--data", str(tmp_path), "--device", "sleep:1ms", "--workers", workers, "--batch-size", "2")
        done = here("profile", "resnet18", "--mode", "infer", *arguments, "--quiet")
        assert done.returncode == 1
        assert "Traceback" not in done.stdout + done.stderr
        shown = done.stdout.replace("\n", "").replace(" ", "")
        assert str(broken).replace(" ", "") in shown
        assert "remove" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch-size", "0"), "batch size must be at least 1, got 0"),
        (("--batches", "0"), "batches must be at least 1, got 0"),
        (("--device", "gpu"), "no such device"),
        (("--timeout", "soon"), "is not a time"),
        (("--save", "/no/such/folder/trial.json"), "cannot write"),
        (("--ranks", "2", "--validate"), "leave out --validate"),
        (("--ranks", "2", "--parallel", "dp", "--device", "cpu"), "DataParallel splits each batch over 2 GPUs"),
        (("--save", "/"), "--save needs a file to write to, and / is a folder"),
    ],
)
def test_a_wrong_value_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    sentence = refused("profile", f"{PLANTED}:plain", *arguments)
    assert words in sentence
    assert len(sentence.splitlines()) == 1


def test_wrong_usage_has_status_2() -> None:
    assert "fp7" in refused("profile", "resnet18", "--precision", "fp7", status=2)
    assert refused("profile", status=2)


def test_a_failed_trial_is_still_a_document() -> None:
    done = here("profile", f"{PLANTED}:raises", "--mode", "infer", "--device", "cpu", "--json", "--quiet")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "failed"
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_processes(number: int) -> None:
    arguments = ("profile", f"{PLANTED}:hangs", "--mode", "infer", "--workers", "2", "--device", "cpu", "--quiet")
    command = [sys.executable, "-m", "stoker", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        family: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while len(family) < 4 and time.monotonic() < deadline:  # the server, the trial, its two workers
            family = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors.strip() == "stoker: interrupted"
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [left for left in alive if left.status() != psutil.STATUS_ZOMBIE] == []
    assert len(family) >= 4


def test_a_flag_is_no_file_to_save_to(tmp_path: Path) -> None:
    done = apart("limit", "alexnet", "--gpu-memory", "8GiB", "--save", "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "stoker: --save needs a file to write to, got --quiet"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["algebra", "thesis"])
def test_the_algebra_can_be_asked_for_by_its_old_name(name: str) -> None:
    arguments = ("--mode", "infer", "--device", "sleep:1ms", "--items", "32", "--max-batch", "8", "--budget", "3s")
    found = document("tune", f"{PLANTED}:plain", *arguments, "--planner", name)
    assert found["planner"] == "algebra"
    assert found["batch_size"] == 8
