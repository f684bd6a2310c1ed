"""Bytes and seconds, as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.errors import InputError
from stoker.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("16GiB", 16 * 2**30), ("1.5 gb", 1_500_000_000), ("512MiB", 2**29), ("117", 117), (" 2 KiB ", 2048)],
)
def test_bytes_are_read_as_written(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("20ms", 0.02), ("1.5s", 1.5), ("2min", 120), ("3", 3), ("250 µs", 25e-5)]
)
def test_seconds_are_read_as_written(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "GiB", "16 XiB", "-1GB", "1e3"])
def test_what_is_no_size_says_so(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a size|unknown unit"):
        parse_bytes(text)


@given(some.integers(0, 2**50))
def test_a_written_size_reads_back_to_within_its_digits(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006, abs=1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12.3 ms"), (4.56, "4.56 s"), (125, "2 min 05 s"), (2e-6, "2 µs"), (0, "0 µs")]
)
def test_seconds_are_written_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
