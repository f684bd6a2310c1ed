"""Has C's malloc keep what is freed, in place of giving it back to the system and asking for it again.

Pieces as large as an image's tensor are returned when they are freed, and every page of the next one is made anew: for
items that load quickly, that is most of their time. A person gets the same by starting Python with `ENVIRONMENT`.
"""

import ctypes
import os
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 1_000_000_000, 32 * 2**20
"""The most that is kept, and the largest piece that can be: the library takes no more."""
_NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
ENVIRONMENT = f"{_NAMES[0]}={_KEPT_BYTES} {_NAMES[1]}={_LARGEST_BYTES}"


def can_keep_memory() -> bool:
    """Whether this system's malloc can be told, and has not been yet."""
    return hasattr(ctypes.CDLL(None), "mallopt") and not any(name in os.environ for name in _NAMES)


class Keeping:
    """Runs first in a worker, then the person's own `worker_init_fn`."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker: int) -> None:
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        if self._inner:
            self._inner(worker)
