"""A short fixed job that tells how fast the machine is at a moment: one JPEG is decoded and made smaller.

It runs in the caller's process, never in that of a run: memory that it frees would change how malloc serves the run.
"""

import io
from functools import cache
from time import perf_counter

from stoker.records import Record


class ReferenceRules(Record, frozen=True):
    """How often the job is timed before a run."""

    samples: int = 5
    """Enough for a median that one interruption does not change."""
    limit_s: float = 0.05
    """No further sample is begun after this: a slow machine is not kept waiting."""
    width: int = 500
    height: int = 375
    """The size of an average image of ImageNet."""
    side: int = 224
    """The size that models take."""


RULES = ReferenceRules()


def prepare() -> None:
    """Make the image and load the decoder, once in a process, so that the first sample is like the others."""
    if not _image.cache_info().currsize:
        run_job()


def reference_s() -> tuple[float, ...]:
    """Seconds that the job takes now, a few times."""
    prepare()
    samples: list[float] = []
    began = perf_counter()
    while len(samples) < RULES.samples and perf_counter() - began < RULES.limit_s:
        samples.append(run_job())
    return tuple(samples)


def run_job() -> float:
    """Decode the image, convert it and resize it; how many seconds that took."""
    from PIL import Image

    image = _image()
    began = perf_counter()
    Image.open(io.BytesIO(image)).convert("RGB").resize((RULES.side, RULES.side))
    return perf_counter() - began


@cache
def _image() -> bytes:
    """A JPEG of waves and grain: it has as many coefficients to decode as a photograph."""
    import numpy as np
    from PIL import Image

    shape = (RULES.height, RULES.width, 3)
    across, down = np.meshgrid(np.linspace(0, 20, RULES.width), np.linspace(0, 15, RULES.height))
    layers = [127 + 90 * np.sin(across * turn) * np.cos(down / turn) for turn in (1.0, 1.7, 2.3)]
    grain = np.random.default_rng(1).normal(0, 12, shape)
    buffer = io.BytesIO()
    Image.fromarray((np.stack(layers, axis=2) + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
