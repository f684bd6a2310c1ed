"""Each hint on a fabricated machine that deserves it, and on one that does not."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from stoker.machine.hints import LOADER_FILES, USUAL_SHM_BYTES, hints
from stoker.records import Cpu, Cuda, Gpu, GpuProcess, Hint, Host, Machine, Setting, Software, Throttling

GIB, MIB = 2**30, 2**20
ORDINARY = Machine(
    cpu=Cpu(model="laptop", logical=16, physical=8, affinity=16, quota=None, usable=16.0),
    host=Host(
        ram_bytes=32 * GIB,
        cgroup_limit_bytes=None,
        limit_bytes=32 * GIB,
        available_bytes=20 * GIB,
        shm_bytes=16 * GIB,
        shm_free_bytes=16 * GIB,
        open_files_soft=1024,
        open_files_hard=1048576,
        start_method="fork",
    ),
    gpus=(),
    cuda=Cuda(problem="no NVIDIA driver here"),
    software=Software(
        stoker="0.1", python="3.12.1", torch="2.8", torchvision="0.23", numpy="2", pillow="11", system="Linux-6.8"
    ),
)
GPU = Gpu(
    index=0,
    name="RTX 4090",
    uuid="GPU-0",
    memory_total_bytes=24 * GIB,
    memory_free_bytes=23 * GIB,
    compute_capability="8.9",
    utilisation=0.05,
)


def change(part: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(part, **changes)


def with_cpu(**changes: Any) -> Machine:
    machine: Machine = change(ORDINARY, cpu=change(ORDINARY.cpu, **changes))
    return machine


def with_host(**changes: Any) -> Machine:
    machine: Machine = change(ORDINARY, host=change(ORDINARY.host, **changes))
    return machine


def with_gpu(*, cuda: Cuda | None = None, **changes: Any) -> Machine:
    machine: Machine = change(ORDINARY, gpus=(change(GPU, **changes),), cuda=cuda or Cuda(driver="580.1", usable=True))
    return machine


def found(machine: Machine, **options: Any) -> tuple[Hint, ...]:
    return hints(machine, environ=options.pop("environ", {}), **options)


def only(machine: Machine, **options: Any) -> Hint:
    (hint,) = found(machine, **options)
    return hint


def test_an_ordinary_laptop_hears_nothing() -> None:
    assert found(ORDINARY) == ()
    assert found(with_gpu()) == ()


LIMITED = {"quota": 4.0, "usable": 4.0}


def test_a_quota_below_affinity() -> None:
    hint = only(with_cpu(**LIMITED), environ={"OMP_NUM_THREADS": "4"})
    assert hint.what.startswith("the CPU quota is 4, though 16 CPUs are shown")
    assert "at most 4 workers" in hint.remedy
    assert "held this group back" not in hint.what


def test_a_quota_that_leaves_the_affinity_alone() -> None:
    assert found(with_cpu(quota=16.0)) == ()
    assert found(with_cpu(quota=32.0)) == ()


def test_a_quota_that_already_bit() -> None:
    throttling = Throttling(periods=100, throttled_periods=40, throttled_s=3.0)
    hint = only(with_cpu(**LIMITED, throttling=throttling), environ={"OMP_NUM_THREADS": "1"})
    assert "in 40% of its periods" in hint.what


def test_less_than_one_cpu_still_allows_one_worker() -> None:
    hint = only(with_cpu(quota=0.5, usable=0.5), environ={"OMP_NUM_THREADS": "1"})
    assert "at most 1 worker," in hint.remedy


def test_thread_pools_that_do_not_know_the_quota() -> None:
    _, hint = found(with_cpu(**LIMITED))
    assert hint.what.startswith("OMP_NUM_THREADS is not set")
    assert "16 threads" in hint.what
    assert hint.remedy.startswith("export OMP_NUM_THREADS=4")


@pytest.mark.parametrize("value", ["17", "32,4"])
def test_thread_pools_set_above_the_cpus(value: str) -> None:
    hint = only(ORDINARY, environ={"OMP_NUM_THREADS": value, "MKL_NUM_THREADS": "2"})
    assert hint.what.startswith(f"OMP_NUM_THREADS={value} is more threads")


@pytest.mark.parametrize("value", ["16", "1", "", "auto", "4,64"])
def test_thread_pools_that_fit(value: str) -> None:
    assert found(ORDINARY, environ={"OMP_NUM_THREADS": value}) == ()


def test_opencv_brings_its_own_threads() -> None:
    hint = only(ORDINARY, opencv=True)
    assert "OpenCV is installed" in hint.what
    assert "cv2.setNumThreads(0)" in hint.remedy


def test_opencv_that_was_told_or_has_one_cpu() -> None:
    assert found(ORDINARY, opencv=True, environ={"OPENCV_FOR_THREADS_NUM": "1"}) == ()
    assert found(with_cpu(affinity=1, usable=1.0), opencv=True) == ()


def test_shared_memory_of_a_plain_container() -> None:
    hint = only(with_host(shm_bytes=64 * MIB, shm_free_bytes=64 * MIB))
    assert hint.what.startswith("/dev/shm holds 64 MiB; 2 workers with batches of 64 images need 220 MiB")
    assert "--shm-size" in hint.remedy


def test_shared_memory_just_large_enough() -> None:
    assert found(with_host(shm_bytes=USUAL_SHM_BYTES, shm_free_bytes=USUAL_SHM_BYTES)) == ()
    assert USUAL_SHM_BYTES == 6 * 64 * 3 * 224 * 224 * 4


def test_shared_memory_that_is_filled() -> None:
    hint = only(with_host(shm_free_bytes=10 * MIB))
    assert hint.what.startswith("/dev/shm has 10 MiB free of 16 GiB")
    assert "torch_*" in hint.remedy


def test_no_shared_memory_matters_on_linux_alone() -> None:
    without = with_host(shm_bytes=None, shm_free_bytes=None)
    assert "no /dev/shm" in only(without).what
    mac = change(without, software=change(ORDINARY.software, system="macOS-15"))
    assert found(mac) == ()


def test_too_few_open_files_for_the_workers_there_is_room_for() -> None:
    hint = only(with_host(open_files_soft=128))
    assert hint.what.startswith("a process may open 128 files; a loader with 16 workers can need 228")
    assert hint.remedy == "ulimit -n 65536"


def test_a_hard_limit_needs_someone_else() -> None:
    assert only(with_host(open_files_soft=128, open_files_hard=200)).remedy.startswith("raise the hard limit")
    assert only(with_host(open_files_soft=128, open_files_hard=4096)).remedy == "ulimit -n 4096"


def test_the_usual_open_files_are_few_only_for_many_workers() -> None:
    assert found(with_cpu(logical=64, affinity=64, usable=64.0)) == ()
    assert "can need 1348" in only(with_cpu(logical=128, affinity=128, usable=128.0)).what


def test_a_loader_opens_no_more_files_than_counted() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_FILES], capture_output=True, text=True, check=True)
    before, most = map(int, done.stdout.split())
    assert 4 < most - before <= LOADER_FILES.needed(Setting(num_workers=4)) - LOADER_FILES.beside
    assert LOADER_FILES.needed(Setting(num_workers=0)) == 0


OPEN_FILES = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
count = lambda: len(os.listdir("/proc/self/fd"))
before, data = count(), TensorDataset(torch.zeros(400, 8), torch.zeros(400))
print(before, max(count() for batch in DataLoader(data, batch_size=8, num_workers=4)))
"""


OTHER = GpuProcess(pid=77, name="python", used_bytes=10 * GIB)


def test_a_gpu_with_someone_else_on_it() -> None:
    hint = only(with_gpu(memory_free_bytes=13 * GIB, processes=(OTHER,)))
    assert hint.what == "GPU 0 is not free: 13 GiB of 24 GiB are left; on it: python (pid 77) with 10 GiB"
    assert "CUDA_VISIBLE_DEVICES" in hint.remedy


def test_a_gpu_that_is_taken_by_someone_unseen() -> None:
    assert only(with_gpu(memory_free_bytes=13 * GIB)).what == "GPU 0 is not free: 13 GiB of 24 GiB are left"
    unseen = GpuProcess(pid=77, name=None, used_bytes=None)
    assert "cannot be seen from here (pid 77)" in only(with_gpu(memory_free_bytes=13 * GIB, processes=(unseen,))).what


def test_a_gpu_that_someone_keeps_busy_with_little_memory() -> None:
    small = GpuProcess(pid=77, name="python", used_bytes=200 * MIB)
    assert len(found(with_gpu(utilisation=0.9, processes=(small,)))) == 1
    assert found(with_gpu(utilisation=0.1, processes=(small,))) == ()  # a desktop's window manager


def test_what_we_hold_ourselves_is_not_held_against_the_gpu() -> None:
    assert found(with_gpu(memory_free_bytes=2 * GIB), holds_gpu=True) == ()
    assert len(found(with_gpu(memory_free_bytes=2 * GIB, processes=(OTHER,)), holds_gpu=True)) == 1


def test_a_gpu_that_is_hidden_may_be_taken() -> None:
    hidden = Cuda(driver="580.1", usable=True, visible_devices="GPU-1")
    assert found(with_gpu(memory_free_bytes=GIB, cuda=hidden)) == ()


def test_a_gpu_that_does_not_tell_its_memory() -> None:
    assert found(with_gpu(memory_total_bytes=0, memory_free_bytes=0)) == ()


def test_a_gpu_that_torch_cannot_use() -> None:
    broken = Cuda(driver="580.1", torch_asked=True, problem="this torch (2.8.0+cpu) is built without CUDA")
    hint = only(with_gpu(cuda=broken))
    assert hint.what == "this torch (2.8.0+cpu) is built without CUDA"
    assert "driver 580.1" in hint.remedy


def test_a_gpu_that_torch_was_not_asked_about() -> None:
    assert found(with_gpu(cuda=Cuda(driver="580.1"))) == ()


def test_every_gpu_hidden_by_the_environment() -> None:
    hint = only(with_gpu(cuda=Cuda(driver="580.1", torch_asked=True, visible_devices="")))
    assert hint.what == "CUDA_VISIBLE_DEVICES='' hides every GPU"
