"""GPUs through a driver that is played by a fake: one that answers, one that is broken, one that is not there."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from stoker.machine import gpu, torch_probe
from stoker.machine.torch_probe import TorchFacts
from stoker.records import Gpu, GpuProcess

GIB = 2**30


def raising(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise pynvml.NVMLError(code)

    return fail


class FakeDriver:
    """Two GPUs behind NVML's own functions; handles are indices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.depth = 0
        self.processes: list[Any] = []
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: self._move(1),
            "nvmlShutdown": lambda: self._move(-1),
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * GIB, free=79 * GIB),
            "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=37, memory=12),
            "nvmlDeviceGetName": lambda _: "NVIDIA H100",
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
            "nvmlDeviceGetComputeRunningProcesses": lambda _: self.processes,
            "nvmlDeviceGetComputeMode": lambda _: pynvml.NVML_COMPUTEMODE_DEFAULT,
        }
        for name, answer in answers.items():
            self.answer(name, answer)

    def answer(self, name: str, function: Callable[..., Any]) -> None:
        self.patch.setattr(pynvml, name, function)

    def _move(self, step: int) -> None:
        self.depth += step


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


def process(pid: int, used: int | None = GIB) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def test_a_gpu_that_takes_one_process_at_a_time_is_known(driver: FakeDriver) -> None:
    driver.answer("nvmlDeviceGetComputeMode", lambda _: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert gpu.read(environ={})[0][0].exclusive


def test_every_gpu_is_described(driver: FakeDriver) -> None:
    gpus, cuda = gpu.read(environ={})
    assert gpus[1] == Gpu(
        index=1,
        name="NVIDIA H100",
        uuid="GPU-1",
        memory_total_bytes=80 * GIB,
        memory_free_bytes=79 * GIB,
        compute_capability="9.0",
        utilisation=0.37,
    )
    assert len(gpus) == 2
    assert (cuda.driver, cuda.problem, cuda.torch_asked, cuda.usable) == ("580.159.04", None, False, False)
    assert driver.depth == 0  # shut down as often as initialised


def test_torchs_own_word_is_kept(driver: FakeDriver) -> None:
    facts = TorchFacts(torch="2.8.0+cu128", cuda="12.8", cudnn="9.10.2", usable=True)
    _, cuda = gpu.read(environ={}, facts=facts)
    assert (cuda.cuda, cuda.cudnn, cuda.usable, cuda.torch_asked) == ("12.8", "9.10.2", True, True)


def test_torchs_problem_is_told_where_the_driver_is_well(driver: FakeDriver) -> None:
    _, cuda = gpu.read(environ={}, facts=TorchFacts(problem="this torch (2.8.0+cpu) is built without CUDA"))
    assert cuda.problem == "this torch (2.8.0+cpu) is built without CUDA"


def test_settings_are_told_by_their_names(driver: FakeDriver) -> None:
    environ = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "CUDA_VISIBLE_DEVICES": "1"}
    gpus, cuda = gpu.read(environ=environ)
    assert cuda.allocator == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert cuda.visible_devices == "1"
    assert len(gpus) == 2  # hidden ones are described too
    both = gpu.read(environ={**environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:native"})[1].allocator
    assert both == "PYTORCH_CUDA_ALLOC_CONF=backend:native PYTORCH_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver here"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "installed but not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer: Unknown Error"),
    ],
)
def test_a_missing_or_broken_driver_is_described(driver: FakeDriver, code: int, sentence: str) -> None:
    driver.answer("nvmlInit", raising(code))
    gpus, cuda = gpu.read(environ={})
    assert gpus == ()
    assert cuda.driver is None
    assert sentence in (cuda.problem or "")


def test_a_driver_that_breaks_after_its_start_is_shut_down(driver: FakeDriver) -> None:
    driver.answer("nvmlDeviceGetCount", raising(pynvml.NVML_ERROR_UNKNOWN))
    assert "does not answer" in (gpu.ask_driver().problem or "")
    assert driver.depth == 0


def test_a_driver_without_gpus_says_so(driver: FakeDriver) -> None:
    driver.answer("nvmlDeviceGetCount", lambda: 0)
    assert gpu.ask_driver().problem == "the NVIDIA driver runs, but shows no GPU"


def test_nvml_not_installed_is_described(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in (gpu.ask_driver().problem or "")


def test_a_lost_gpu_does_not_hide_the_others(driver: FakeDriver) -> None:
    lost = raising(pynvml.NVML_ERROR_GPU_IS_LOST)
    driver.answer("nvmlDeviceGetHandleByIndex", lambda index: index if index else lost())
    found = gpu.ask_driver()
    assert [each.index for each in found.gpus] == [1]
    assert found.problem == "GPU 0 does not answer: GPU is lost"


def test_what_a_gpu_does_not_know_is_none(driver: FakeDriver) -> None:
    unknown = raising(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for question in ("UtilizationRates", "CudaComputeCapability", "ComputeRunningProcesses", "MemoryInfo"):
        driver.answer(f"nvmlDeviceGet{question}", unknown)
    found = gpu.ask_driver()
    assert (found.gpus[0].utilisation, found.gpus[0].compute_capability) == (None, None)
    assert (found.gpus[0].memory_total_bytes, found.gpus[0].processes) == (0, ())
    assert "GPU 0 does not tell its memory" in (found.problem or "")


def test_others_are_named_and_we_are_not_among_them(driver: FakeDriver) -> None:
    unseen = 2**22 + 1  # above every pid that Linux gives
    driver.processes = [process(os.getpid()), process(os.getppid(), None), process(unseen)]
    parent, stranger = gpu.ask_driver().gpus[0].processes
    assert parent.pid == os.getppid()
    assert parent.name
    assert parent.used_bytes is None
    assert stranger == GpuProcess(pid=unseen, name=None, used_bytes=GIB)


def test_in_a_container_our_own_pid_is_not_taken_for_a_stranger(driver: FakeDriver) -> None:
    driver.processes = [process(2**22 + 1)]  # ourselves, by the host's count
    assert gpu.ask_driver(holding=True).gpus[0].processes == ()
    assert len(gpu.ask_driver(holding=False).gpus[0].processes) == 1
    driver.processes = [process(2**22 + 1), process(os.getpid())]  # pids do agree: the other one is a stranger
    assert len(gpu.ask_driver(holding=True).gpus[0].processes) == 1


def named(index: int, name: str = "H100") -> Gpu:
    return Gpu(
        index=index,
        name=name,
        uuid=f"GPU-{index}abc",
        memory_total_bytes=1,
        memory_free_bytes=1,
        compute_capability=None,
        utilisation=None,
    )


@pytest.mark.parametrize(
    ("devices", "left"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-0a", [0]), ("", []), ("-1", []), ("0,7,1", [0]), ("GPU-", [])],
)
def test_visible_devices(devices: str | None, left: list[int]) -> None:
    assert [each.index for each in gpu.visible((named(0), named(1)), devices)] == left


def test_numbers_are_not_trusted_among_gpus_of_two_kinds() -> None:
    mixed = (named(0, "H100"), named(1, "T400"))
    assert gpu.visible(mixed, "0") == mixed
    assert gpu.visible(mixed, "GPU-1a") == (mixed[1],)
    assert gpu.visible(mixed, "MIG-1") == mixed


@pytest.mark.parametrize(("number", "words"), [(8902, "8.9.2"), (90100, "9.1.0"), (91002, "9.10.2"), (None, None)])
def test_cudnn_versions(number: int | None, words: str | None) -> None:
    assert torch_probe._cudnn(number) == words


def test_a_child_that_dies_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_probe, "__file__", "/nowhere/probe.py")
    facts = torch_probe.ask()
    assert not facts.usable
    assert "torch failed (exit status 2)" in (facts.problem or "")


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    script = tmp_path / "hang.py"
    script.write_text("import threading; threading.Event().wait()")
    monkeypatch.setattr(torch_probe, "__file__", str(script))
    assert torch_probe.ask(timeout_s=0.5).problem == "torch did not answer within 0.5 s"


def test_an_interpreter_that_cannot_start_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not start /nowhere/python" in (torch_probe.ask().problem or "")


class FakeTorch:
    """Just enough of torch for the questions we ask of it."""

    __version__ = "2.8.0+cu128"
    version = SimpleNamespace(cuda="12.8")

    def __init__(self, *, built: bool = True, failure: Exception | None = None) -> None:
        self.failure = failure
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(is_built=lambda: built), cudnn=SimpleNamespace(version=lambda: 91002)
        )
        self.cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, init=lambda: None)

    def ones(self, _: int, device: str) -> Any:
        assert device == "cuda"
        if self.failure:
            raise self.failure
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 8.0))


def test_usable_means_that_a_kernel_ran() -> None:
    assert torch_probe._why_not(FakeTorch()) is None
    failing = FakeTorch(failure=RuntimeError("CUDA error: no kernel image is available\nCompile with"))
    problem = "torch cannot use the GPU: CUDA error: no kernel image is available"
    assert torch_probe._why_not(failing) == problem
    assert not torch_probe._facts(failing, problem=problem).usable
    assert "built without CUDA" in (torch_probe._why_not(FakeTorch(built=False)) or "")


def test_torch_is_asked_here_only_where_it_already_holds_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch(failure=AssertionError("nothing may be run in the caller's process"))
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert torch_probe.ask_here() == TorchFacts("2.8.0+cu128", "12.8", "9.10.2", usable=True)
    fake.cuda.is_initialized = lambda: False
    assert torch_probe.ask_here() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_probe.ask_here() is None
