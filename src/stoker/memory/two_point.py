"""The two-point estimate of the largest batch: memory at two batch sizes, and a line through them.

Equations 4.1 to 4.9 of A. Tripathi's thesis (UT Austin, 2019). They model memory as `B·I + B·O + X + 2·B·Y`: inputs,
outputs, what does not grow with the batch, and feature maps with their gradients. They were made for convolutional
nets.
"""

from stoker.errors import InputError
from stoker.records import Record


class TwoPointRules(Record, frozen=True):
    """Numbers of the method, as published."""

    batches: tuple[int, int] = (10, 50)
    """The two batch sizes."""
    iterations: int = 20
    """Iterations at each size."""
    counted: int = 15
    """Memory is averaged over the last ones, in which it no longer changes."""


RULES = TwoPointRules()


class Reading(Record, frozen=True):
    """The readings at one batch size: memory in use, and the bytes of the inputs and of the outputs."""

    batch_size: int
    memory_bytes: float
    input_bytes: float
    output_bytes: float


class TwoPoint(Record, frozen=True):
    """The solved equation: `x_bytes` for any batch; for each item its input, its output, and twice `y_bytes`."""

    x_bytes: float
    y_bytes: float
    input_bytes: float
    output_bytes: float

    @property
    def item_bytes(self) -> float:
        return self.input_bytes + self.output_bytes + 2 * self.y_bytes

    def memory(self, batch_size: int) -> float:
        """Equation 4.7."""
        return self.x_bytes + batch_size * self.item_bytes

    def largest(self, gpu_memory_bytes: int, *, gpus: int = 1) -> int:
        """Equation 4.9, times the GPUs."""
        if self.item_bytes <= 0:
            raise InputError("memory does not grow from the first batch size to the second: two points tell nothing")
        return max(0, int((gpu_memory_bytes - self.x_bytes) // self.item_bytes)) * gpus


def solve(first: Reading, second: Reading) -> TwoPoint:
    """X and Y from two readings (section 4.1, step 5)."""
    if first.batch_size == second.batch_size:
        raise InputError(f"two different batch sizes are needed, got {first.batch_size} twice")
    slope = (second.memory_bytes - first.memory_bytes) / (second.batch_size - first.batch_size)
    input_bytes = first.input_bytes / first.batch_size
    output_bytes = first.output_bytes / first.batch_size
    return TwoPoint(
        x_bytes=first.memory_bytes - slope * first.batch_size,
        y_bytes=(slope - input_bytes - output_bytes) / 2,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
    )
