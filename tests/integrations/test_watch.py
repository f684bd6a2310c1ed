"""Watching loaders in this process: what is seen, and that everything is taken back."""

import copy
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stoker.errors import InputError
from stoker.integrations.logs import LoaderLog
from stoker.integrations.watch import Watch, watch


class Slow(Dataset[Any]):
    """Items that take a while."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(self.seconds)
        return torch.full((4,), float(index)), index % 2


def _train(loader: Any) -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _state() -> Any:
    """All that a watch could leave behind in torch and in the environment."""
    import multiprocessing.queues
    import multiprocessing.reduction

    import torch.nn.modules.module
    import torch.utils.data._utils.fetch
    import torch.utils.data.dataloader

    fetch = torch.utils.data._utils.fetch
    functions: list[Any] = [
        DataLoader.__init__,
        DataLoader.__iter__,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        fetch._MapDatasetFetcher.fetch,
        fetch._IterableDatasetFetcher.fetch,
        fetch._IterableDatasetFetcher.__init__,
        torch.utils.data.Subset.__getitems__,
        torch.nn.Module.__call__,
        torch.autograd.backward,
        multiprocessing.queues.Queue.get,
        multiprocessing.reduction.ForkingPickler.dumps.__func__,  # type: ignore[attr-defined]
        Slow.__getitem__,
    ]
    modules = [torch.utils.data.dataloader, fetch, torch.nn.modules.module, torch.autograd, multiprocessing.queues]
    optimizer = sys.modules["torch.optim.optimizer"]
    return (
        [function.__code__ for function in functions],
        [sorted(name for name in vars(module) if "stoker" in name) for module in modules],
        [len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)],
        {name: value for name, value in os.environ.items() if name == "PYTHONPATH" or "STOKER" in name},
    )


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = _state()
    yield
    assert _state() == before
    assert Watch._active is None


def _training(watched: Watch) -> LoaderLog:
    (process,) = watched.log.processes
    assert not watched.log.problems
    assert process.training is not None
    return process.training


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_watched_while_it_is_read(workers: int) -> None:
    loader = DataLoader(Slow(), 4, shuffle=False, num_workers=workers)
    watched = watch(loader)
    assert len(watched) == 6
    losses = _train(watched)
    assert losses == _train(loader)
    training = _training(watched)
    assert len(training.steps) == 6
    assert training.arguments["num_workers"] == workers
    assert sum(fetch.items for fetch in training.fetches) >= 12
    assert all(seconds >= 0.002 for fetch in training.fetches for seconds in fetch.item_s)
    stages = {name for fetch in training.fetches for name in fetch.stages_s}
    assert any(name.startswith("item.threading.Event") for name in stages)


def test_workers_that_are_spawned_are_seen_too() -> None:
    loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.zeros(8).long()), 4, num_workers=1)
    loader.multiprocessing_context = "spawn"
    with watch() as watched:
        _train(loader)
    assert _training(watched).fetches[0].worker == 0


def test_a_block_sees_all_loaders_and_where_they_were_made() -> None:
    with watch(batches=3) as watched:
        loader = DataLoader(Slow(), 4, shuffle=True)
        _train(loader)
        _train(loader)
    training = _training(watched)
    assert len(training.steps) == 3
    assert watched.log.processes[0].ended == "batches"
    assert Path(training.site[0][0]) == Path(__file__)
    assert training.site[0][2] == "test_a_block_sees_all_loaders_and_where_they_were_made"


def test_a_loop_that_is_left_or_fails_is_over() -> None:
    watched = watch(DataLoader(Slow(), 4))
    for _ in watched:
        break
    assert len(watched.log.processes[0].loaders[0].steps) == 1
    with pytest.raises(ZeroDivisionError):
        list(map(lambda batch: 1 // 0, watched))  # noqa: C417 - it fails in the middle of the loop
    assert len(watched.log.processes[0].loaders[0].steps) == 1


def test_one_watch_at_a_time() -> None:
    with watch():
        second = watch()
        with pytest.raises(InputError, match="one watch at a time"):
            second.start()


def test_what_makes_no_sense_is_one_sentence() -> None:
    with pytest.raises(InputError, match="batches must be at least 1, got 0"):
        watch(batches=0)
    with pytest.raises(InputError, match="there is no loader to read"):
        next(iter(watch()))
    with pytest.raises(InputError, match="nothing was watched yet"):
        watch().log  # noqa: B018 - a property


def test_models_and_loaders_are_as_they_were() -> None:
    loader = DataLoader(Slow(), 4)
    names = set(vars(loader))
    with watch():
        net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        for x, _ in loader:
            net(x).sum().backward()
            assert not net._forward_hooks
            assert not net[0]._forward_pre_hooks
        copy.deepcopy(net)
        pickle.loads(pickle.dumps((net, loader.dataset)))
    assert set(vars(loader)) == names


def test_a_compiled_step_stays_one_graph() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    net[0].register_forward_hook(lambda *_: None)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with watch() as watched:
        compiled = torch.compile(lambda x: net(x).sum(), backend=backend, fullgraph=True)
        for x, _ in DataLoader(Slow(), 4):
            compiled(x).backward()
            net(x)
    assert len(graphs) == 1
    assert len(watched.log.processes[0].loaders[0].steps) == 6


def test_observing_that_fails_is_a_warning_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.integrations.bootstrap import process

    loader = DataLoader(Slow(), 4)
    expected = _train(loader)
    monkeypatch.setattr(process, "_RANKS", None)
    watched = watch(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _train(watched) == expected
    (warning,) = [each for each in caught if "Stoker" in str(each.message)]
    assert "iteration: TypeError" in str(warning.message)


class Alarm(Exception):
    """What a signal handler raises."""


def test_an_error_of_a_signal_handler_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be raised while one of our hooks runs. Python itself swallows those that reach a weak reference's
    callback."""
    fired = 0
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)

    def handler(number: int, frame: Any) -> None:
        nonlocal fired
        fired += 1
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), 1)
    caught = 0
    try:
        with watch(batches=10**6) as watched:
            for attempt in range(100):
                seen = fired
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.003 + attempt % 7 * 1e-4)
                    while fired == seen:
                        for _ in loader:
                            pass
                except Alarm:
                    caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught + len(swallowed) == fired >= 100
    assert not any("stoker" in repr(each.object) for each in swallowed)
    assert not watched.log.problems


def test_what_was_watched_is_answered_as_a_script_is(tmp_path: Path) -> None:
    import stoker
    from stoker.integrations.reports import page_of

    watched = stoker.watch(DataLoader(Slow(0.02), 4, shuffle=True))
    with pytest.raises(InputError, match="nothing was watched yet"):
        _ = watched.training
    _train(watched)
    trial = watched.training
    assert (trial.workload.data, trial.workload.mode, len(trial.timeline.got_s)) == ("Slow", "train", 6)
    assert trial.stages["wait"].total_s > trial.stages["step"].total_s
    (edit,) = watched.answer.proposals[0].edits
    assert (edit.file, edit.before) == (__file__.replace(f"{Path.cwd()}/", ""), "DataLoader(…)")
    text = str(watched.answer)
    assert edit.sentence in text
    assert "Bottleneck: item" in text
    page = page_of(watched.answer)
    assert (page.kind, page.cards[1].about) == ("run", "what to change")
    assert edit.sentence in page.cards[1].detail


def test_a_watch_that_saw_no_loader_says_so() -> None:
    with watch() as watched:
        pass
    assert watched.answer.training is None
    with pytest.raises(InputError, match="no DataLoader was read"):
        _ = watched.training
