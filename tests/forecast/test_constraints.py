"""Bounds of a machine, on numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.forecast.constraints import bounds_of, ruled_out
from stoker.records import Facts, Setting

FACTS = Facts(usable_cores=4, available_bytes=4 * 2**30, shm_free_bytes=64 * 2**20, open_files=1024)


@pytest.mark.parametrize(
    ("setting", "item_bytes", "bound"),
    [
        (Setting(batch_size=16, num_workers=2), 600_000, None),
        (Setting(batch_size=64, num_workers=2), 600_000, "shm"),
        (Setting(batch_size=64, num_workers=0), 600_000, None),
        (Setting(batch_size=256, num_workers=0), 10**7, "host_memory"),
        (Setting(batch_size=300, num_workers=0), 1, "device_memory"),
        (Setting(batch_size=8, num_workers=5), 1, "cpus"),
        (Setting(batch_size=1, num_workers=4, prefetch_factor=200), 1, "open_files"),
    ],
)
def test_each_bound_is_named(setting: Setting, item_bytes: int, bound: str | None) -> None:
    found = ruled_out(setting, item_bytes, bounds_of(FACTS, max_batch=256))
    assert (found.bound if found else None) == bound


def test_gradients_that_are_kept_for_the_next_batch_take_room() -> None:
    bounds = bounds_of(FACTS, max_batch=256, max_accumulating_batch=246)
    assert ruled_out(Setting(batch_size=256), 1, bounds) is None
    assert ruled_out(Setting(batch_size=246, accumulate=2), 1, bounds) is None
    found = ruled_out(Setting(batch_size=247, accumulate=2), 1, bounds)
    assert found is not None
    assert "246 with accumulated gradients" in found.sentence


def test_workers_that_wait_for_storage_may_be_more_than_the_cpus() -> None:
    bounds = bounds_of(FACTS, waiting_share=0.75)
    assert ruled_out(Setting(batch_size=1, num_workers=16), 1, bounds) is None
    assert ruled_out(Setting(batch_size=1, num_workers=17), 1, bounds) is not None


def test_a_stream_has_no_items_for_more_workers_than_shards() -> None:
    bounds = bounds_of(FACTS, shards=2)
    assert ruled_out(Setting(batch_size=8, num_workers=2), 1, bounds) is None
    found = ruled_out(Setting(batch_size=8, num_workers=3), 1, bounds)
    assert found is not None
    assert found.bound == "shards"
    assert found.sentence == "2 of 3 workers have items: the stream has no more shards"


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 8), st.integers(1, 10**7))
def test_what_is_allowed_fits_into_shared_memory(batch: int, workers: int, prefetch: int, item: int) -> None:
    setting = Setting(batch_size=batch, num_workers=workers, prefetch_factor=prefetch)
    if ruled_out(setting, item, bounds_of(FACTS)) is None:
        assert setting.in_flight_batches * batch * item <= 64 * 2**20


def test_several_gpus_share_what_the_machine_has() -> None:
    one, four = bounds_of(FACTS), bounds_of(FACTS, gpus=4)
    assert four.usable_cores == one.usable_cores / 4
    assert four.memory_bytes == one.memory_bytes // 4
    assert four.open_files == one.open_files, "each process may open as many"
