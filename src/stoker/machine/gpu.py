"""The GPUs as the driver shows them (NVML), and the stack between them and torch.

A machine without a GPU, or with a broken driver, is described: it is no error.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from stoker.machine.torch_probe import TorchFacts
from stoker.records import Cuda, Gpu, GpuProcess

_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Driver(NamedTuple):
    """What NVML told: `problem` says in one sentence what it could not."""

    gpus: tuple[Gpu, ...] = ()
    version: str | None = None
    problem: str | None = None


def read(
    *, environ: Mapping[str, str] | None = None, facts: TorchFacts | None = None, holding: bool = False
) -> tuple[tuple[Gpu, ...], Cuda]:
    """Every GPU that the driver shows, hidden ones too, and the stack above them.

    `facts` are torch's own word, where it was asked; `holding` where this process is itself on a GPU.
    """
    environ = os.environ if environ is None else environ
    driver = ask_driver(holding=holding)
    cuda = Cuda(
        driver=driver.version,
        cuda=facts.cuda if facts else None,
        cudnn=facts.cudnn if facts else None,
        usable=facts.usable if facts else False,
        torch_asked=facts is not None,
        allocator=_allocator(environ),
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        problem=driver.problem or (facts.problem if facts else None),
    )
    return driver.gpus, cuda


def visible(gpus: tuple[Gpu, ...], devices: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where the names cannot be told for sure.

    CUDA numbers the fastest first and NVML by slot, so numbers are taken only among GPUs of one kind.
    """
    if devices is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in devices.split(",")):
        if name.startswith("MIG-") or (name.isdigit() and len({gpu.name for gpu in gpus}) > 1):
            return gpus
        matching = [gpu for gpu in gpus if _named(gpu, name)]
        if len(matching) != 1:  # CUDA too stops at the first name it does not know
            break
        chosen += matching
    return tuple(chosen)


def _named(gpu: Gpu, name: str) -> bool:
    return gpu.index == int(name) if name.isdigit() else name.startswith("GPU-") and gpu.uuid.startswith(name)


def _allocator(environ: Mapping[str, str]) -> str | None:
    """As `NAME=value`: which of two settings wins differs between versions of torch."""
    return " ".join(f"{name}={environ[name]}" for name in _ALLOCATOR_VARIABLES if environ.get(name)) or None


def ask_driver(*, holding: bool = False) -> Driver:
    """All that NVML says. `holding` where this process is itself on a GPU."""
    try:
        import pynvml
    except ImportError:
        return Driver(problem="the package nvidia-ml-py is not installed, so no GPU can be described")
    try:
        with nvml() as library:
            version = str(library.nvmlSystemGetDriverVersion())
            gpus, problems = _gpus(library, holding)
    except pynvml.NVMLError as error:
        return Driver(problem=_why(error.value, str(error)))
    if not gpus and not problems:
        problems = ["the NVIDIA driver runs, but shows no GPU"]
    return Driver(gpus=gpus, version=version, problem="; ".join(problems) or None)


@contextmanager
def nvml() -> Iterator[Any]:
    """NVML, initialised and shut down again; raises pynvml.NVMLError where there is no driver."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _why(code: int, message: str) -> str:
    import pynvml

    known = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver here: its library libnvidia-ml was not found",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the loaded NVIDIA driver and its libraries differ in version; "
        "a reboot after an update mends this",
        pynvml.NVML_ERROR_NO_PERMISSION: "the NVIDIA driver may not be used by this user",
    }
    return known.get(code, f"the NVIDIA driver does not answer: {message}")


def _gpus(library: Any, holding: bool) -> tuple[tuple[Gpu, ...], list[str]]:
    """The GPUs that answer, and a sentence for each that does not."""
    found, problems = [], []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            gpu = _gpu(library, index, holding)
        except library.NVMLError as error:
            problems.append(f"GPU {index} does not answer: {error}")
            continue
        found.append(gpu)
        if not gpu.memory_total_bytes:
            problems.append(f"GPU {index} does not tell its memory, as those that share the host's do not")
    return tuple(found), problems


def _gpu(library: Any, index: int, holding: bool) -> Gpu:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    memory = _try(library, library.nvmlDeviceGetMemoryInfo, handle)
    capability = _try(library, library.nvmlDeviceGetCudaComputeCapability, handle)
    rates = _try(library, library.nvmlDeviceGetUtilizationRates, handle)
    mode = _try(library, library.nvmlDeviceGetComputeMode, handle)
    return Gpu(
        index=index,
        name=str(library.nvmlDeviceGetName(handle)),
        uuid=str(library.nvmlDeviceGetUUID(handle)),
        memory_total_bytes=int(memory.total) if memory else 0,
        memory_free_bytes=int(memory.free) if memory else 0,
        compute_capability="{}.{}".format(*capability) if capability else None,
        utilisation=rates.gpu / 100 if rates else None,
        processes=_others(_try(library, library.nvmlDeviceGetComputeRunningProcesses, handle) or [], holding),
        exclusive=mode == library.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    )


def _try(library: Any, question: Any, handle: Any) -> Any:
    """None where this GPU or driver does not know: MIG parts have no utilisation, containers may not see processes."""
    try:
        return question(handle)
    except library.NVMLError:
        return None


def _others(processes: list[Any], holding: bool) -> tuple[GpuProcess, ...]:
    """Who computes there apart from us and our children."""
    if not processes:
        return ()
    import psutil

    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = [process for process in processes if process.pid not in own]
    if holding and len(others) == len(processes):
        # NVML counts pids as the host does. In a container we cannot find ourselves among them: blame no one unseen.
        others = [process for process in others if psutil.pid_exists(process.pid)]
    return tuple(GpuProcess(pid=each.pid, name=_name(each.pid), used_bytes=each.usedGpuMemory) for each in others)


def _name(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
