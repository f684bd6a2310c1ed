"""What is known of GPUs by name: the generation, and what torch's kernels take on it whatever the model."""

import re

from stoker.errors import InputError
from stoker.records import Record

DEFAULT_GPU = "h200"
_MIB = 2**20
_CAPABILITIES: dict[str, tuple[int, int]] = {
    "b200": (10, 0),
    "b100": (10, 0),
    "gb200": (10, 0),
    "h200": (9, 0),
    "h100": (9, 0),
    "h800": (9, 0),
    "h20": (9, 0),
    "gh200": (9, 0),
    "a100": (8, 0),
    "a800": (8, 0),
    "a30": (8, 0),
    "a10": (8, 6),
    "a10g": (8, 6),
    "a16": (8, 6),
    "a40": (8, 6),
    "a4000": (8, 6),
    "a5000": (8, 6),
    "a6000": (8, 6),
    "rtx3060": (8, 6),
    "rtx3070": (8, 6),
    "rtx3080": (8, 6),
    "rtx3090": (8, 6),
    "l4": (8, 9),
    "l40": (8, 9),
    "l40s": (8, 9),
    "rtx4000": (8, 9),
    "rtx4060": (8, 9),
    "rtx4070": (8, 9),
    "rtx4080": (8, 9),
    "rtx4090": (8, 9),
    "rtx5070": (12, 0),
    "rtx5080": (12, 0),
    "rtx5090": (12, 0),
    "t4": (7, 5),
    "rtx2070": (7, 5),
    "rtx2080": (7, 5),
    "rtx2080ti": (7, 5),
    "titanrtx": (7, 5),
    "v100": (7, 0),
    "titanv": (7, 0),
    "p100": (6, 0),
    "p40": (6, 1),
    "gtx1080": (6, 1),
    "gtx1080ti": (6, 1),
}
_MAKERS = ("nvidia", "geforce", "tesla", "quadro")
_VARIANTS = re.compile(r"(ti|super|sxm\d?|pcie|nvl|laptopgpu|\d+gb)+$")


class Architecture(Record, frozen=True):
    """A generation of GPUs, by its compute capability."""

    major: int
    minor: int

    @property
    def workspace_bytes(self) -> int:
        """What torch gives each of cuBLAS' handles at its first matrix product, and never takes back."""
        return 32 * _MIB if self.major in (9, 10) else 2 * 4096 * 1024 + 8 * 16 * 1024

    @property
    def has_flash_attention(self) -> bool:
        return self.major >= 8

    @property
    def prefers_cudnn_attention(self) -> bool:
        return self.major in (9, 10)


def architecture(gpu: str) -> Architecture:
    """The generation of a GPU by its name (`a100`, `NVIDIA H100 80GB HBM3`) or its capability (`8.6`, `sm_86`)."""
    plain = re.sub(r"[\s_-]", "", gpu.lower())
    told = re.fullmatch(r"(?:sm)?(\d{1,2})\.?(\d)", plain)
    if told:
        return Architecture(major=int(told[1]), minor=int(told[2]))
    found = _CAPABILITIES.get(plain) or _looked_up(gpu)
    if found is None:
        raise InputError(f"no GPU is known as {gpu!r}; give a compute capability such as 8.6, or one of: {known()}")
    return Architecture(major=found[0], minor=found[1])


def known() -> str:
    return ", ".join(_CAPABILITIES)


def _looked_up(gpu: str) -> tuple[int, int] | None:
    """A driver's long name holds the short one as a word, or as two: `NVIDIA GeForce RTX 3090`."""
    words = [word for word in re.split(r"[\s_-]+", gpu.lower()) if word and word not in _MAKERS]
    for size in (2, 1):
        for place in range(len(words) - size + 1):
            name = "".join(words[place : place + size])
            found = _CAPABILITIES.get(name) or _CAPABILITIES.get(_VARIANTS.sub("", name))
            if found:
                return found
    return None
