"""Which versions of the parts that decide a pipeline's speed are installed, without importing any of them."""

import platform
from importlib import util

from stoker.records import Software


def read(torch: str | None = None) -> Software:
    """`torch` is its own word where it was asked: it names the build too (2.8.0+cu128)."""
    return Software(
        stoker=_version("stoker") or "unknown",
        python=platform.python_version(),
        torch=torch or _version("torch"),
        torchvision=_version("torchvision"),
        numpy=_version("numpy"),
        pillow=_version("pillow"),
        system=_system(),
    )


def _system() -> str:
    """Not `platform.platform()`: that starts a process to learn what we know."""
    system, libc = platform.uname(), "".join(platform.libc_ver())
    return "-".join(part for part in (system.system, system.release, system.machine, libc) if part)


def has_opencv() -> bool:
    return util.find_spec("cv2") is not None


def _version(package: str) -> str | None:
    from importlib import metadata  # slow to load, and only this asks it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
