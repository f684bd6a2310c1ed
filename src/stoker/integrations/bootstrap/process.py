"""This process: what it runs, and whether it is one whose loops are the script's own."""

import glob
import hashlib
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

from .journal import VERSION, is_ours

_RANKS = ("rank", "local_rank", "world_size")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def is_worker() -> bool:
    """Whether this process is a loader's worker."""
    return sys.modules["torch.utils.data._utils.worker"].get_worker_info() is not None


def forks(context: Any) -> bool:
    """Whether a loader with this multiprocessing context forks its workers."""
    method = context if isinstance(context, str) else getattr(context, "_name", None)
    method = method or multiprocessing.get_start_method(allow_none=True)
    return (method or multiprocessing.get_all_start_methods()[0]) == "fork"


def is_nested(directory: str) -> bool:
    """Whether a process above this one reads loaders of its own, so that this one is its helper: it started a
    subprocess, or forked one. A rank of a distributed run is no helper."""
    distributed = sys.modules.get("torch.distributed")
    for pid in _ancestors():
        for path in glob.glob(os.path.join(glob.escape(directory), f"loop-{pid}-*.jsonl")):
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                return False
            with open(path, encoding="utf-8") as file:
                above = json.loads(file.readline())
            own = ranks()
            return own["local_rank"] is None or own == {name: above[name] for name in _RANKS}
    return False


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def describe_process(clock_ns: int) -> dict[str, Any]:
    """The first line of a loop's file."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main else None
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": list(sys.argv),
        "executable": sys.executable,
        "cwd": os.getcwd(),
        "python": platform.python_version(),
        "torch": str(getattr(sys.modules["torch"], "__version__", "")),
        "script": script,
        "sha256": _hash(script),
        **ranks(),
        "clock_ns": clock_ns,
        "unix_s": time.time(),
        "host": platform.node(),
    }


def memory() -> dict[str, int | None]:
    """What this process holds."""
    rss = None
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            rss = int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError) as error:
        if not is_ours(error):
            raise
    cuda = sys.modules.get("torch.cuda")
    on_gpu = cuda is not None and cuda.is_initialized()
    return {"rss_bytes": rss, "cuda_bytes": cuda.memory_reserved() if cuda is not None and on_gpu else None}


def ranks() -> dict[str, int | None]:
    """This process among those of a distributed run, as the environment says."""
    return {name: _number(os.environ.get(name.upper())) for name in _RANKS}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _hash(path: str | None) -> str | None:
    try:
        with open(path or "", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
