"""Probes as files: complete ones are read back, others are refused."""

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.errors import InputError
from stoker.forecast.probes import read
from stoker.records import Probes, encode
from tests.forecast.test_fit import eight_cores


@pytest.fixture(scope="module")
def probed() -> Probes:
    """Items of 1 ms, no step; eight cores."""
    return eight_cores()


@pytest.mark.parametrize(
    "broken",
    [{"got_s": ()}, {"items": ()}, {"items": (0,) * 12}, {"cpu_s": (1.0,)}, {"batch_size": 0}],
    ids=lambda broken: ", ".join(broken),
)
def test_incomplete_probes_are_refused(broken: dict[str, Any], probed: Probes) -> None:
    first, *rest = probed.runs
    assert read(encode(probed)) == probed
    with pytest.raises(InputError, match="are incomplete"):
        read(encode(replace(probed, runs=(replace(first, **broken), *rest))))


def test_probes_of_a_machine_without_cores_or_of_another_version_are_refused(probed: Probes) -> None:
    with pytest.raises(InputError, match="are incomplete"):
        read(encode(replace(probed, machine=replace(probed.machine, usable_cores=0))))
    with pytest.raises(InputError, match="version 7, this Stoker reads 1: probe again"):
        read(b'{"version": 7, "all": "else"}')
    with pytest.raises(InputError, match="no probes that this version can read: Input data was truncated"):
        read(encode(probed)[:100])
