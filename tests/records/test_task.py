"""What identifies a task: its key is the same everywhere, and a new field changes no old key."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import InputError
from stoker.records import Extent, Setting, Task, WorkloadSpec, decode, encode

RESNET = WorkloadSpec(spec="resnet18", data="jpeg")

RECORDED = {
    "default": Task(workload=RESNET),
    "infer": Task(workload=RESNET, mode="infer"),
    "batch": Task(workload=RESNET, setting=Setting(batch_size=128, num_workers=8)),
    "float": Task(workload=RESNET, device="sleep:20ms", extent=Extent(batches=None, epochs=2)),
    "limit": Task(kind="limit", workload=RESNET, options={"gpu_memory": 17179869184, "method": "trace"}),
    "tune": Task(kind="tune", workload=WorkloadSpec(spec="timm/convnext_tiny", data="tensors", items=512)),
    "text": Task(workload=WorkloadSpec(spec="hf/bert-base-uncased", data="text"), mode="train"),
    "bf16": Task(workload=RESNET, setting=Setting(precision="bf16", compile=True)),
    "cold": Task(workload=RESNET, extent=Extent(source="cold", seed=3)),
    "persistent": Task(workload=RESNET, setting=Setting(num_workers=2, persistent_workers=True, in_order=False)),
}
KEYS = {
    "default": "fac606314ec1c07b8593",
    "infer": "6934dae41dafd16f8eb6",
    "batch": "98a70145259cb6f2d2ff",
    "float": "bf075ad5a1cd4f09a0d0",
    "limit": "c15ba9046efd63f8fbfb",
    "tune": "515d6410ce68a38532a6",
    "text": "dfa769765543d3449ddd",
    "bf16": "52cdbfb5723a08c8547f",
    "cold": "e6fac455732e51d28957",
    "persistent": "2b0063996215bc540bbe",
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_keys_do_not_change(name: str) -> None:
    assert RECORDED[name].key() == KEYS[name]


def test_keys_differ_where_tasks_differ() -> None:
    assert len({task.key() for task in RECORDED.values()}) == len(RECORDED)


def test_another_process_gives_the_same_key() -> None:
    code = (
        "from stoker.records import *\n"
        "spec = WorkloadSpec(spec='resnet18', data='jpeg')\n"
        "print(Task(workload=spec, setting=Setting(num_workers=8, batch_size=128)).key())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == RECORDED["batch"].key()


def test_a_task_survives_json() -> None:
    for task in RECORDED.values():
        assert decode(encode(task), Task) == task
        assert decode(encode(task), Task).key() == task.key()


def test_the_content_of_a_users_file_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.py"
    file.write_text("def workload(): ...\n")
    monkeypatch.chdir(tmp_path)
    absolute = Task(workload=WorkloadSpec(spec=f"{file}:workload")).key()
    assert Task(workload=WorkloadSpec(spec="train.py:workload")).key() == absolute
    assert Task(workload=WorkloadSpec(spec="train.py:other")).key() != absolute
    file.write_text("def workload(): return 1\n")
    assert Task(workload=WorkloadSpec(spec="train.py:workload")).key() != absolute


def test_a_data_folder_counts_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    named = Task(workload=WorkloadSpec(spec="resnet18", data="photos")).key()
    assert named == Task(workload=WorkloadSpec(spec="resnet18", data=str(tmp_path / "photos"))).key()


def test_what_has_no_key_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a live Workload object has no key"):
        Task().key()
    with pytest.raises(InputError, match=r"cannot read .*gone\.py: No such file"):
        Task(workload=WorkloadSpec(spec=f"{tmp_path}/gone.py:workload")).key()
