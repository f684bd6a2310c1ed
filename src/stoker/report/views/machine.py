"""The table of `stoker doctor`: what the machine has, and what would break a run."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Disk, Gpu, Machine, ReadSpeed
from stoker.units import format_bytes, format_seconds


def machine_view(machine: Machine) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in (*_host_rows(machine), *_gpu_rows(machine), *_software_rows(machine)):
        table.add_row(label, value)
    parts: list[RenderableType] = [table]
    if machine.disk is not None:
        parts += [Text(), _disk_table(machine.disk)]
    parts.append(Text())
    if not machine.hints:
        parts.append(Text("Nothing here is known to break a run.", style="green"))
    for hint in machine.hints:
        parts.append(Text.assemble(("warning: ", "bold yellow"), hint.what, "\n  ", (hint.remedy, "dim")))
    return Group(*parts)


def _host_rows(machine: Machine) -> list[tuple[str, str]]:
    cpu, host = machine.cpu, machine.host
    physical = f", {cpu.physical} physical cores" if cpu.physical else ""
    quota = f", quota {cpu.quota:g}" if cpu.quota is not None else ", no quota"
    rows = [
        ("CPUs to use", f"{cpu.usable:g} ({cpu.logical} in the machine{physical}; affinity {cpu.affinity}{quota})"),
        ("processor", cpu.model),
    ]
    if cpu.throttling is not None and cpu.throttling.throttled_periods:
        share = cpu.throttling.throttled_periods / max(cpu.throttling.periods, 1)
        rows.append(
            ("held back", f"{format_seconds(cpu.throttling.throttled_s)}, in {share:.0%} of the quota's periods")
        )
    limit = f", limited to {format_bytes(host.cgroup_limit_bytes)}" if host.cgroup_limit_bytes is not None else ""
    rows.append(("memory", f"{format_bytes(host.ram_bytes)}{limit}; {format_bytes(host.available_bytes)} available"))
    if host.shm_bytes is not None and host.shm_free_bytes is not None:
        rows.append(("/dev/shm", f"{format_bytes(host.shm_bytes)}, {format_bytes(host.shm_free_bytes)} free"))
    rows.append(("open files", f"{host.open_files_soft} (at most {host.open_files_hard})"))
    rows.append(("workers start by", host.start_method))
    if host.limits_memory is not None:
        answer = "possible (profile --limit-memory)" if host.limits_memory else f"no: {host.limits_problem}"
        rows.append(("limiting memory", answer))
    return rows


def _gpu_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = [(f"GPU {gpu.index}", _gpu(gpu)) for gpu in machine.gpus] or [("GPU", "none")]
    cuda = machine.cuda
    if cuda.problem:
        rows.append(("CUDA", cuda.problem))
    if cuda.driver or cuda.cuda:
        versions = [f"driver {cuda.driver}" if cuda.driver else "", f"CUDA {cuda.cuda}" if cuda.cuda else ""]
        versions.append(f"cuDNN {cuda.cudnn}" if cuda.cudnn else "")
        rows.append(("CUDA stack", ", ".join(version for version in versions if version)))
    if cuda.allocator:
        rows.append(("allocator settings", cuda.allocator))
    if cuda.visible_devices is not None:
        rows.append(("CUDA_VISIBLE_DEVICES", cuda.visible_devices))
    return rows


def _gpu(gpu: Gpu) -> str:
    capability = f", compute {gpu.compute_capability}" if gpu.compute_capability else ""
    users = f"; used by {len(gpu.processes)} other processes" if gpu.processes else ""
    alone = "; one process at a time" if gpu.exclusive else ""
    memory = f"{format_bytes(gpu.memory_total_bytes)}, {format_bytes(gpu.memory_free_bytes)} free"
    return f"{gpu.name}, {memory}{capability}{alone}{users}"


def _software_rows(machine: Machine) -> list[tuple[str, str]]:
    soft = machine.software
    return [
        ("torch", f"{soft.torch or 'not installed'}, torchvision {soft.torchvision or 'not installed'}"),
        ("Python", f"{soft.python} on {soft.system}"),
    ]


def _disk_table(disk: Disk) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("reading", "from storage", "from the page cache"):
        table.add_column(title, justify="left" if title == "reading" else "right")
    for label, cold, cached in (
        ("large files, in order", disk.sequential_cold, disk.sequential_cached),
        ("small files, shuffled", disk.small_cold, disk.small_cached),
    ):
        if cold is not None or cached is not None:
            table.add_row(label, _speed(cold), _speed(cached))
    about = f"{disk.storage.path}: {disk.storage.kind} storage, {disk.storage.filesystem} on {disk.storage.device}"
    evicted = f"{disk.files} files read; {disk.evicted:.0%} of their pages had left the page cache first"
    return Group(Text(about), table, Text(evicted))


def _speed(speed: ReadSpeed | None) -> str:
    return "–" if speed is None else f"{format_bytes(speed.bytes_per_s)}/s ({speed.reads_per_s:,.0f} reads/s)"
