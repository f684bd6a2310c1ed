"""GPUs by name: their generation, their size, and what torch's kernels take on them for any model."""

import re

from stoker.errors import InputError
from stoker.records import Record

DEFAULT_GPU = "h200"
_MIB = 2**20
_USUAL_MULTIPROCESSORS = 108
"""Assumed for a GPU of which only the compute capability is given: those of an A100."""
_GPUS: dict[str, tuple[int, int, int]] = {  # compute capability, multiprocessors
    "b200": (10, 0, 148),
    "b100": (10, 0, 132),
    "gb200": (10, 0, 148),
    "h200": (9, 0, 132),
    "h100": (9, 0, 132),
    "h800": (9, 0, 132),
    "h20": (9, 0, 78),
    "gh200": (9, 0, 132),
    "a100": (8, 0, 108),
    "a800": (8, 0, 108),
    "a30": (8, 0, 56),
    "a10": (8, 6, 72),
    "a10g": (8, 6, 80),
    "a16": (8, 6, 10),
    "a40": (8, 6, 84),
    "a4000": (8, 6, 48),
    "a5000": (8, 6, 64),
    "a6000": (8, 6, 84),
    "rtx3060": (8, 6, 28),
    "rtx3070": (8, 6, 46),
    "rtx3080": (8, 6, 68),
    "rtx3090": (8, 6, 82),
    "l4": (8, 9, 58),
    "l40": (8, 9, 142),
    "l40s": (8, 9, 142),
    "rtx4000": (8, 9, 48),
    "rtx4060": (8, 9, 24),
    "rtx4070": (8, 9, 46),
    "rtx4080": (8, 9, 76),
    "rtx4090": (8, 9, 128),
    "rtx5070": (12, 0, 48),
    "rtx5080": (12, 0, 84),
    "rtx5090": (12, 0, 170),
    "t4": (7, 5, 40),
    "rtx2070": (7, 5, 36),
    "rtx2080": (7, 5, 46),
    "rtx2080ti": (7, 5, 68),
    "titanrtx": (7, 5, 72),
    "v100": (7, 0, 80),
    "titanv": (7, 0, 80),
    "p100": (6, 0, 56),
    "p40": (6, 1, 30),
    "gtx1080": (6, 1, 20),
    "gtx1080ti": (6, 1, 28),
}
_MAKERS = ("nvidia", "geforce", "tesla", "quadro")
_VARIANTS = re.compile(r"(ti|super|sxm\d?|pcie|nvl|laptopgpu|\d+gb)+$")

_OLDEST, _NEWEST = 5, 12
"""Major compute capabilities that torch runs on."""


class Architecture(Record, frozen=True):
    """A GPU's compute capability and how many multiprocessors it has."""

    major: int
    minor: int
    multiprocessors: int = _USUAL_MULTIPROCESSORS

    @property
    def threads(self) -> int:
        """How many threads can run at once."""
        by_capability = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
        return self.multiprocessors * by_capability.get((self.major, self.minor), 2048)

    @property
    def workspace_bytes(self) -> int:
        """What torch gives each cuBLAS handle at its first matrix product, and never takes back."""
        return 32 * _MIB if self.major in (9, 10) else 2 * 4096 * 1024 + 8 * 16 * 1024

    @property
    def has_flash_attention(self) -> bool:
        return self.major >= 8

    @property
    def prefers_cudnn_attention(self) -> bool:
        return self.major in (9, 10)


def architecture(gpu: str) -> Architecture:
    """A GPU by its name (`a100`, `NVIDIA H100 80GB HBM3`) or its compute capability (`8.6`, `sm_86`).

    Raises `InputError` with the known names for any other.
    """
    plain = re.sub(r"[\s_-]", "", gpu.lower())
    capability = re.fullmatch(r"(?:sm)?(\d{1,2})\.?(\d)", plain)
    if capability and _OLDEST <= int(capability[1]) <= _NEWEST:
        return Architecture(major=int(capability[1]), minor=int(capability[2]))
    found = _GPUS.get(plain) or _by_long_name(gpu)
    if found is None:
        raise InputError(f"no GPU is known as {gpu!r}; give a compute capability such as 8.6, or one of: {known()}")
    return Architecture(major=found[0], minor=found[1], multiprocessors=found[2])


def is_known(gpu: str) -> bool:
    """Whether a GPU is in the table. A compute capability does not say how many multiprocessors there are."""
    return _by_long_name(gpu) is not None


def known() -> str:
    """The names in the table, for a message."""
    return ", ".join(_GPUS)


def _by_long_name(gpu: str) -> tuple[int, int, int] | None:
    """A driver's long name has the short one as one word or two: `NVIDIA GeForce RTX 3090`."""
    words = [word for word in re.split(r"[\s_-]+", gpu.lower()) if word and word not in _MAKERS]
    for size in (2, 1):
        for place in range(len(words) - size + 1):
            name = "".join(words[place : place + size])
            found = _GPUS.get(name) or _GPUS.get(_VARIANTS.sub("", name))
            if found:
                return found
    return None
