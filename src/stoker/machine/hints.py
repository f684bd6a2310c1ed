"""What breaks people's runs on a machine like this one, and what to do about it; read off a `Machine` alone."""

import math
from collections.abc import Iterator, Mapping

from stoker.machine.gpu import visible
from stoker.records import Gpu, GpuProcess, Hint, Machine, Record, Setting
from stoker.units import format_bytes, format_workers

# A usual batch: 64 float32 images of 3 x 224 x 224, with 2 workers that keep 2 batches each, and 2 on their way.
USUAL_BATCH_BYTES = 64 * 602_112
USUAL_SHM_BYTES = (2 * 2 + 2) * USUAL_BATCH_BYTES


class LoaderFiles(Record, frozen=True):
    """How many files a process with a DataLoader has open. `doctor` and `tune` count alike."""

    per_worker: int = 6
    """Counted on stock PyTorch: pipes and sockets of one worker."""
    tensors_per_batch: int = 2
    """Each tensor on its way through shared memory keeps a file open. Most batches are inputs and targets."""
    beside: int = 64
    """Files of Python, torch, the data set and the script itself."""

    def needed(self, setting: Setting) -> int:
        """Open files of a setting's loader; 0 without workers."""
        if not setting.num_workers:
            return 0
        return self.tensors_per_batch * setting.in_flight_batches + self.per_worker * setting.num_workers + self.beside


LOADER_FILES = LoaderFiles()

# A desktop takes a little of a GPU, and so does the driver; beyond this share a batch that should fit may not.
GPU_SHARE_TAKEN = 0.15
GPU_BUSY = 0.5

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def hints(
    machine: Machine, *, environ: Mapping[str, str], opencv: bool = False, holds_gpu: bool = False
) -> tuple[Hint, ...]:
    """Each hint that this machine deserves. `opencv`: it is installed. `holds_gpu`: we ourselves are on a GPU."""
    return (
        *_quota(machine),
        *_thread_pools(machine, environ),
        *_opencv(machine, environ, opencv),
        *_shared_memory(machine),
        *_open_files(machine),
        *_gpus_taken(machine, holds_gpu),
        *_gpu_unusable(machine),
    )


def _quota(machine: Machine) -> Iterator[Hint]:
    cpu = machine.cpu
    if cpu.quota is None or cpu.quota >= cpu.affinity:
        return
    held = cpu.throttling
    share = held.throttled_periods / held.periods if held and held.periods else 0.0
    already = f"; it has held this group back in {share:.0%} of its periods" if share >= 0.01 else ""
    yield Hint(
        what=f"the CPU quota is {cpu.quota:g}, though {cpu.affinity} CPUs are shown: "
        f"whatever counts CPUs starts too many workers and threads{already}",
        remedy=f"use at most {_workers(cpu.usable)}, or raise the quota (docker run --cpus, limits.cpu of a pod)",
    )


def _thread_pools(machine: Machine, environ: Mapping[str, str]) -> Iterator[Hint]:
    """OpenMP and BLAS size their pools by affinity, never by quota; torch quiets only its own pool, only in workers."""
    cpu, wanted = machine.cpu, _whole(machine.cpu.usable)
    greedy = [f"{name}={environ[name]}" for name in _THREAD_VARIABLES if _threads(environ, name) > max(1, cpu.usable)]
    if greedy:
        what = f"{' and '.join(greedy)} is more threads for each process than the {cpu.usable:g} CPUs it may use"
    elif cpu.usable < cpu.affinity and not _threads(environ, "OMP_NUM_THREADS"):
        what = (
            f"OMP_NUM_THREADS is not set: OpenMP and BLAS start up to {cpu.affinity} threads in each process; "
            "in workers torch keeps to 1, numpy's BLAS does not"
        )
    else:
        return
    yield Hint(what=what, remedy=f"export OMP_NUM_THREADS={wanted}; in workers that use numpy's linear algebra, 1")


def _opencv(machine: Machine, environ: Mapping[str, str], opencv: bool) -> Iterator[Hint]:
    if opencv and machine.cpu.affinity > 1 and not _threads(environ, "OPENCV_FOR_THREADS_NUM"):
        yield Hint(
            what=f"OpenCV is installed: in every worker that uses it, it starts up to {machine.cpu.affinity} threads",
            remedy="call cv2.setNumThreads(0) in the loader's worker_init_fn, or export OPENCV_FOR_THREADS_NUM=1",
        )


def _shared_memory(machine: Machine) -> Iterator[Hint]:
    size, free = machine.host.shm_bytes, machine.host.shm_free_bytes
    need = format_bytes(USUAL_SHM_BYTES)
    if size is None or free is None:
        if machine.software.system.startswith("Linux"):
            yield Hint(what="there is no /dev/shm: workers cannot hand over batches", remedy="mount a tmpfs there")
    elif size < USUAL_SHM_BYTES:
        yield Hint(
            what=f"/dev/shm holds {format_bytes(size)}; 2 workers with batches of 64 images need {need}, "
            "and one that runs out dies with a bus error",
            remedy="docker run --shm-size=8g or --ipc=host; in a pod, an emptyDir with medium: Memory on /dev/shm; "
            "else num_workers=0",
        )
    elif free < USUAL_SHM_BYTES:
        yield Hint(
            what=f"/dev/shm has {format_bytes(free)} free of {format_bytes(size)}; "
            f"2 workers with batches of 64 images need {need}",
            remedy="see who fills it (ls -l /dev/shm): runs that were killed leave files named torch_* behind",
        )


def _open_files(machine: Machine) -> Iterator[Hint]:
    host = machine.host
    need = LOADER_FILES.needed(Setting(num_workers=_whole(machine.cpu.usable)))
    if host.open_files_soft >= need:
        return
    enough = max(65_536, need)
    if host.open_files_hard >= need:
        remedy = f"ulimit -n {min(enough, host.open_files_hard)}"
    else:
        remedy = f"raise the hard limit (docker run --ulimit nofile={enough}, or nofile in /etc/security/limits.conf)"
    yield Hint(
        what=f"a process may open {host.open_files_soft} files; "
        f"a loader with {_workers(machine.cpu.usable)} can need {need}, "
        "then fails with 'Too many open files' or 'received 0 items of ancdata'",
        remedy=remedy,
    )


def _gpus_taken(machine: Machine, holds_gpu: bool) -> Iterator[Hint]:
    for gpu in visible(machine.gpus, machine.cuda.visible_devices):
        by_others = sum(process.used_bytes or 0 for process in gpu.processes)
        taken = by_others if holds_gpu else gpu.memory_total_bytes - gpu.memory_free_bytes
        busy = bool(gpu.processes) and (gpu.utilisation or 0.0) >= GPU_BUSY
        if taken > GPU_SHARE_TAKEN * gpu.memory_total_bytes or busy:
            yield Hint(
                what=f"GPU {gpu.index} is not free: {format_bytes(gpu.memory_free_bytes)} of "
                f"{format_bytes(gpu.memory_total_bytes)} are left{_by_whom(gpu)}",
                remedy="wait for the other run or end it, or choose another GPU with CUDA_VISIBLE_DEVICES; "
                "limits and timings found now hold only beside it",
            )


def _by_whom(gpu: Gpu) -> str:
    return f"; on it: {', '.join(_process(process) for process in gpu.processes)}" if gpu.processes else ""


def _process(process: GpuProcess) -> str:
    name = process.name or "a process that cannot be seen from here"
    used = f" with {format_bytes(process.used_bytes)}" if process.used_bytes is not None else ""
    return f"{name} (pid {process.pid}){used}"


def _gpu_unusable(machine: Machine) -> Iterator[Hint]:
    cuda = machine.cuda
    if not machine.gpus or not cuda.torch_asked or cuda.usable:
        return
    if cuda.visible_devices is not None and not visible(machine.gpus, cuda.visible_devices):
        yield Hint(
            what=f"CUDA_VISIBLE_DEVICES={cuda.visible_devices!r} hides every GPU",
            remedy="unset CUDA_VISIBLE_DEVICES, or set it to the GPU's number",
        )
        return
    yield Hint(
        what=cuda.problem or "there is a GPU, but torch cannot use it",
        remedy=f"install a torch built for CUDA that driver {cuda.driver} supports: see pytorch.org/get-started",
    )


def _threads(environ: Mapping[str, str], name: str) -> int:
    """OMP_NUM_THREADS may hold a list, a number for each level; the first counts."""
    first = environ.get(name, "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _workers(cpus: float) -> str:
    return format_workers(_whole(cpus))


def _whole(cpus: float) -> int:
    return max(1, math.floor(cpus))
