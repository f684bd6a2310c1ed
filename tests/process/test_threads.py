"""Threads in a process that others are forked from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import stoker
from stoker.process.threads import limit_threads

HERE = str(Path(__file__).parents[1] / "workloads" / "planted.py")


@pytest.fixture
def _as_before() -> Iterator[None]:
    number = torch.get_num_threads()
    yield
    limit_threads().release(number)


@pytest.mark.usefixtures("_as_before")
def test_the_number_asked_for_under_a_thread_limit_is_set_for_the_run() -> None:
    limit = limit_threads()
    by_name = torch.set_num_threads
    torch.set_num_threads(3)
    assert torch.get_num_threads() == 3, "for whoever asks"
    torch.set_num_threads(torch.get_num_threads())
    assert torch.__config__.parallel_info().splitlines()[1].split()[-1] == "1", "and still one"
    assert limit_threads() is limit, "limiting twice is limiting once"
    limit.release()
    assert torch.get_num_threads() == 3
    by_name(2)
    assert torch.get_num_threads() == 2, "whoever imported it by name is heard in a run"
    limit.release(1)
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("number", [0, "two"])
def test_a_number_that_is_none_is_refused_as_ever(number: object) -> None:
    limit_threads()
    with pytest.raises((RuntimeError, TypeError)):
        torch.set_num_threads(number)  # type: ignore[arg-type]


def test_code_that_computes_with_many_threads_where_it_is_opened_is_tuned_and_limited() -> None:
    """A pool of threads does not survive a fork: whoever asks it to compute would wait for ever."""
    plan = stoker.tune(f"{HERE}:computes_when_opened", max_batch=16, device="cpu", budget_s=2)
    assert plan.measured is not None
    assert stoker.limit(f"{HERE}:computes_when_opened", gpu_memory="64MiB", device="cpu").max_batch > 0
