"""Makes C's malloc keep freed memory instead of returning it to the system.

malloc returns pieces as large as an image's tensor when they are freed, and the system makes every page of the next one
anew. For items that load quickly that takes most of their time. `ENVIRONMENT` has the same effect on a whole process.
"""

import ctypes
import os
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt."""
_KEPT_BYTES, _LARGEST_BYTES = 1_000_000_000, 32 * 2**20
"""The most that is kept, and the largest piece that can be: malloc accepts no larger threshold."""
_NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
ENVIRONMENT = f"{_NAMES[0]}={_KEPT_BYTES} {_NAMES[1]}={_LARGEST_BYTES}"


def can_keep_memory() -> bool:
    """Whether this system's malloc has such settings, and nobody has made them already."""
    return hasattr(ctypes.CDLL(None), "mallopt") and not any(name in os.environ for name in _NAMES)


class MallocSetting:
    """A `worker_init_fn` that makes malloc keep memory in the worker, then calls the user's own."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker: int) -> None:
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        if self._inner:
            self._inner(worker)
