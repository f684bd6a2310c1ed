"""The loader that a setting makes: how its workers are started, and their threads."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import stoker
from stoker.errors import InputError
from stoker.measure.feed import make_feed
from stoker.records import Extent, Setting, StartMethod


class Threads(Dataset[Any]):
    """How many threads torch has in the process that loads an item."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(torch.get_num_threads())


def name_of_worker(worker: int) -> None:
    torch.set_num_threads(torch.get_num_threads() + 10)


def threads_under(setting: Setting, **parts: Any) -> set[int]:
    workload = stoker.Workload(model=torch.nn.Identity(), dataset=Threads(), **parts)
    feed = make_feed(workload, workload.dataset, "infer", setting, Extent(batches=None), pinned=False)
    return {int(value) for batch in feed for value in batch}


@pytest.mark.parametrize("method", [None, "spawn"])
def test_workers_have_the_threads_that_were_asked_for(method: StartMethod | None) -> None:
    usual = Setting(batch_size=2, num_workers=1, multiprocessing_context=method)
    assert threads_under(usual) == {1}
    assert threads_under(Setting(batch_size=2, num_workers=1, multiprocessing_context=method, worker_threads=2)) == {2}


def test_the_users_own_function_runs_after_it() -> None:
    setting = Setting(batch_size=2, num_workers=1, worker_threads=2)
    assert threads_under(setting, worker_init_fn=name_of_worker) == {12}


def test_the_start_method_reaches_the_loader() -> None:
    workload = stoker.Workload(model=torch.nn.Identity(), dataset=Threads())
    setting = Setting(batch_size=2, num_workers=1, multiprocessing_context="forkserver")
    feed = make_feed(workload, workload.dataset, "infer", setting, Extent(), pinned=False)
    assert feed.source.multiprocessing_context.get_start_method() == "forkserver"  # type: ignore[attr-defined]


def test_forked_workers_with_threads_beside_a_step_on_the_cpu_are_refused() -> None:
    workload = stoker.Workload(model=torch.nn.Identity(), dataset=Threads())
    with pytest.raises(InputError, match="forkserver or spawn"):
        stoker.profile(
            workload,
            Setting(num_workers=1, worker_threads=2, multiprocessing_context="fork"),
            Extent(batches=1),
            device="cpu",
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"worker_threads": 0}, "worker threads must be at least 1, got 0"),
        ({"multiprocessing_context": "thread"}, "no such start method: 'thread'; choose from fork"),
    ],
)
def test_wrong_settings_are_one_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Setting(**values)
