"""The thesis' equations on readings whose answer is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.memory.two_point import Reading, solve

GB = 10**9
BYTES = st.integers(1, 10**8)


def reading(batch_size: int, x: float, y: float, inputs: float, outputs: float) -> Reading:
    memory = batch_size * inputs + batch_size * outputs + x + 2 * batch_size * y  # equation 4.7
    return Reading(
        batch_size=batch_size,
        memory_bytes=memory,
        input_bytes=batch_size * inputs,
        output_bytes=batch_size * outputs,
    )


@given(st.integers(0, 10**10), BYTES, BYTES, BYTES)
def test_x_and_y_come_back(x: int, y: int, inputs: int, outputs: int) -> None:
    found = solve(reading(10, x, y, inputs, outputs), reading(50, x, y, inputs, outputs))
    assert found.x_bytes == pytest.approx(x, rel=1e-6, abs=10)
    assert found.y_bytes == pytest.approx(y, rel=1e-6, abs=1)
    largest = found.largest(10**12)
    assert found.memory(largest) <= 10**12 * (1 + 1e-9)
    assert found.memory(largest + 1) > 10**12 * (1 - 1e-9)


def test_a_reading_by_hand() -> None:
    # X = 1 GB, an item takes 0.6 MB in, 4 KB out and twice 10 MB: (16 - 1) GB / 20.604 MB.
    found = solve(reading(10, 1 * GB, 10_000_000, 600_000, 4_000), reading(50, 1 * GB, 10_000_000, 600_000, 4_000))
    assert found.largest(16 * GB) == 728
    assert found.largest(16 * GB, gpus=4) == 4 * 728
    assert found.largest(16 * GB - 1_500_000_000) == 655


# Tables 5.1 and 5.2 of the thesis: estimates at 16 and 11 GB. It publishes no readings, but two estimates of one model
# have to lie on one line of equation 4.9, with an X that is not negative and no more than a net with its gradients,
# momentum and a CUDA context's cache could hold.
ESTIMATES = {"resnet34": (230, 373), "resnet50": (102, 158), "resnet152": (50, 76), "densenet201": (46, 71)}


@pytest.mark.parametrize("name", ESTIMATES)
def test_the_thesis_tables_lie_on_a_line_of_its_own_equation(name: str) -> None:
    at_11, at_16 = ESTIMATES[name]
    item = (16 - 11) * GB / (at_16 - at_11)
    fixed = 11 * GB - at_11 * item
    assert item > 0
    assert -0.1 * GB < fixed < 3.1 * GB
    per_item = item / 2
    found = solve(reading(10, fixed, per_item, 0, 0), reading(50, fixed, per_item, 0, 0))
    assert abs(found.largest(11 * GB) - at_11) <= 1
    assert abs(found.largest(16 * GB) - at_16) <= 1


def test_what_two_points_cannot_tell_is_said() -> None:
    with pytest.raises(InputError, match="two different batch sizes"):
        solve(reading(10, 0, 1, 1, 1), reading(10, 0, 1, 1, 1))
    flat = Reading(batch_size=10, memory_bytes=5, input_bytes=1, output_bytes=1)
    same = Reading(batch_size=50, memory_bytes=5, input_bytes=5, output_bytes=5)
    with pytest.raises(InputError, match="does not grow"):
        solve(flat, same).largest(GB)
