"""Runs of several ranks: real processes under gloo, their shares, what they wait for, and what becomes of failures."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import DistributedSampler

import stoker
from stoker import Extent, Setting
from stoker.analysis import ranks as figures_of
from stoker.analysis.spans import whole
from stoker.analysis.verdict import verdict
from stoker.errors import InputError
from stoker.measure.feed import Order, Share, Shared, SizedShare
from stoker.records import decode, encode

HERE = Path(__file__).parents[1] / "workloads" / "ranked.py"
FEW = Extent(batches=8, warmup=3)


def run(name: str, extent: Extent = FEW, setting: Setting | None = None, **options: Any) -> stoker.Trial:
    setting = setting or Setting(batch_size=4, ranks=2)
    return stoker.profile(f"{HERE}:{name}", setting, extent, **{"device": "cpu", **options})


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that ranks write into."""
    monkeypatch.setenv("RANKED_NOTES", str(tmp_path))
    return tmp_path


def numbers(file: Path) -> list[float]:
    return [float(line) for line in file.read_text().split()]


# ---------------------------------------------------------------- a run


def test_ranks_share_the_items_and_exchange_their_gradients() -> None:
    trial = run("even", setting=Setting(batch_size=4, num_workers=1, ranks=2))
    assert trial.outcome == "done", trial.problem
    assert [log.rank for log in trial.rank_logs] == [0, 1]
    assert [log.items for log in trial.rank_logs] == [44, 44]
    assert trial.items == 88
    assert trial.pace_rank in (0, 1)
    assert {"forward", "backward", "exchange", "update"} <= set(trial.stages)
    assert whole(trial).seconds == pytest.approx(trial.total_s, rel=0.01), "every second is accounted for once"
    assert all(len(log.stages["exchange"].samples_s) == 11 for log in trial.rank_logs)
    assert decode(encode(trial), stoker.Trial) == trial


def test_ranks_that_infer_wait_for_nobody() -> None:
    trial = run("even", mode="infer")
    assert trial.outcome == "done", trial.problem
    assert "exchange" not in trial.stages
    assert len(trial.rank_logs) == 2


def test_ranks_that_sleep_instead_of_a_model_wait_for_each_other() -> None:
    trial = run("slow_items", device="sleep:2ms")
    assert trial.outcome == "done", trial.problem
    assert trial.pace_rank == 1
    first, second = figures_of.figures(trial)
    assert first.idle_s > second.idle_s


def test_several_batches_make_one_exchange() -> None:
    trial = run("even", setting=Setting(batch_size=4, ranks=2, accumulate=4), extent=Extent(batches=8, warmup=0))
    assert trial.outcome == "done", trial.problem
    # Buffers (of the BatchNorm) are sent before the first forward pass after an update; gradients before an update.
    exchanged = [seconds > 0 for seconds in trial.stages["exchange"].samples_s]
    assert [exchanged[place] for place in (1, 2, 5, 6)] == [False] * 4
    assert exchanged[3]
    assert exchanged[7]


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(("workload", "count"), [("noted", 15), ("with_sampler", 15), ("with_batch_sampler", 16)])
def test_every_item_goes_to_one_rank(workload: str, count: int, notes: Path) -> None:
    trial = run(workload, extent=Extent(batches=None), setting=Setting(batch_size=5, ranks=2))
    assert trial.outcome == "done", trial.problem
    first, second = (numbers(notes / f"items-{rank}") for rank in (0, 1))
    assert len(first) == len(second) == count
    assert set(first) | set(second) == set(range(30))


def test_a_distributed_sampler_is_made_anew_for_each_rank(notes: Path) -> None:
    trial = run("with_distributed_sampler", extent=Extent(batches=None), setting=Setting(batch_size=5, ranks=2))
    assert trial.outcome == "done", trial.problem
    assert [numbers(notes / f"items-{rank}") for rank in (0, 1)] == [list(range(0, 30, 2)), list(range(1, 30, 2))]


@pytest.mark.parametrize(("items", "ranks"), [(10, 2), (11, 2), (11, 3), (2, 3), (1, 4)])
def test_shares_are_those_of_torch(items: int, ranks: int) -> None:
    for rank in range(ranks):
        share = Share(rank, ranks)
        sampler: Any = DistributedSampler(range(items), num_replicas=ranks, rank=rank, shuffle=False)  # type: ignore[arg-type]
        theirs = list(sampler)
        assert list(Order(items, items, shuffle=False, seed=0, share=share)) == theirs
        assert list(Shared(range(items), share)) == theirs
        assert len(SizedShare(range(items), share)) == len(theirs)


def test_shuffled_shares_have_every_item_once() -> None:
    orders = [Order(12, 12, shuffle=True, seed=3, share=Share(rank, 3)) for rank in range(3)]
    for _ in range(2):
        assert sorted(index for order in orders for index in order) == list(range(12))


# ---------------------------------------------------------------- who sets the pace


@pytest.mark.parametrize(
    ("workload", "stage", "workers", "calls"), [("slow_items", "wait", 0, 4), ("slow_step", "forward", 0, 1)]
)
def test_a_delay_in_one_rank_is_found_in_that_rank(
    workload: str, stage: str, workers: int, calls: int, notes: Path
) -> None:
    trial = run(workload, Extent(batches=16, warmup=2), Setting(batch_size=4, num_workers=workers, ranks=2))
    assert trial.outcome == "done", trial.problem
    spent = numbers(notes / "spent-1")
    # The least of the samples is the judge: above it is only what a busy machine adds.
    planted = min(sum(spent[at : at + calls]) for at in range(0, len(spent), calls))
    mine, theirs = (trial.rank_logs[rank].stages[stage].samples_s[2:] for rank in (1, 0))
    assert min(mine) - min(theirs) == pytest.approx(planted, rel=0.03)
    found = figures_of.figures(trial)
    pace = figures_of.sets_pace(found)
    assert pace is not None
    assert pace.rank == trial.pace_rank == 1
    assert figures_of.excess(found, pace)[0] == stage
    judged = verdict(trial)
    assert judged is not None
    assert judged.rank == 1
    assert "rank 1 sets the pace" in judged.sentence
    assert found[0].idle_s > 0.5 * planted, "the other waits in the exchange, which is no work of its own"


def test_a_step_that_updates_itself_has_its_exchange_apart(notes: Path) -> None:
    trial = run("own_updates")
    assert trial.outcome == "done", trial.problem
    first, second = figures_of.figures(trial)
    assert trial.pace_rank == 1
    assert first.idle_s > 0.5 * 0.030
    assert second.step_s > 0.030 > first.step_s


# ---------------------------------------------------------------- failures


def test_an_error_in_one_rank_names_the_rank_and_the_place() -> None:
    trial = run("bad_item", extent=Extent(batches=None), setting=Setting(batch_size=4, num_workers=1, ranks=2))
    assert trial.outcome == "failed"
    assert trial.problem is not None
    assert trial.problem.rank == 1
    assert trial.problem.sentence.startswith("rank 1: ValueError")
    assert trial.problem.where is not None
    assert "ranked.py" in trial.problem.where


def test_what_fails_before_the_loop_is_told_of_the_rank_too() -> None:
    trial = run("gone_before_it_begins")
    assert trial.outcome == "failed"
    assert trial.problem is not None
    assert "no checkpoint here" in trial.problem.sentence


def test_parameters_without_a_gradient_have_a_remedy() -> None:
    trial = run("unused_parameters")
    assert trial.outcome == "failed"
    assert trial.problem is not None
    assert "find_unused_parameters" in (trial.problem.remedy or "")
    assert run("unused_parameters_found").outcome == "done"


def test_shares_of_unequal_length_are_told() -> None:
    trial = run("stream", extent=Extent(batches=None))
    assert trial.outcome != "done"
    assert trial.problem is not None
    assert trial.problem.rank == 1
    assert "no more than 5 batches" in trial.problem.sentence


@pytest.mark.parametrize("workload", ["hangs", "stops"])
def test_a_rank_that_hangs_is_ended_and_named(workload: str) -> None:
    began = time.monotonic()
    trial = run(workload, extent=Extent(batches=None))
    assert trial.outcome == "timed_out"
    assert trial.problem is not None
    assert trial.problem.rank == 1
    assert time.monotonic() - began < 60, "long before a run without progress is given up"
    if workload == "hangs":
        assert trial.problem.where is not None
        assert "ranked.py" in trial.problem.where


class Killer(threading.Thread):
    """Waits until both ranks run, looks at their connections, and kills one of them."""

    def __init__(self, notes: Path, rank: int, number: int, after_s: float) -> None:
        super().__init__(daemon=True)
        self._notes, self._rank, self._number, self._after_s = notes, rank, number, after_s
        self.pids: list[int] = []
        self.addresses: set[str] = set()

    def run(self) -> None:
        files = [self._notes / f"pid-{rank}" for rank in (0, 1)]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        self.pids = [int(file.read_text()) for file in files]
        self.pids += [child.pid for pid in self.pids for child in psutil.Process(pid).children(recursive=True)]
        for pid in self.pids:
            for each in psutil.Process(pid).net_connections():
                if each.laddr:
                    self.addresses.add(each.laddr.ip)
        time.sleep(self._after_s)
        os.kill(self.pids[self._rank], self._number)


@pytest.fixture
def killed(notes: Path) -> Any:
    def kill(rank: int, number: int, after_s: float, workers: int) -> None:
        killer = Killer(notes, rank, number, after_s)
        killer.start()
        trial = run("long", Extent(batches=None, epochs=50), Setting(batch_size=4, num_workers=workers, ranks=2))
        killer.join()
        assert trial.outcome == "crashed", trial.problem
        assert trial.problem is not None
        assert trial.problem.rank == rank
        assert signal.Signals(number).name in trial.problem.sentence
        assert killer.addresses <= {"127.0.0.1", "::1"}, "nothing listens beyond this machine"
        until = time.monotonic() + 5  # the system reaps what it has killed
        while time.monotonic() < until and (left := [pid for pid in killer.pids if psutil.pid_exists(pid)]):
            time.sleep(0.05)
        assert not left
        folders = {line for rank in (0, 1) for line in (notes / f"folder-{rank}").read_text().split()}
        assert folders
        assert not any(Path(folder).exists() for folder in folders)
        shared = [path.name for path in Path("/dev/shm").iterdir()]
        assert not [name for name in shared if any(f"_{pid}_" in name for pid in killer.pids)]

    return kill


@pytest.mark.parametrize(("rank", "number", "workers"), [(0, signal.SIGKILL, 0), (1, signal.SIGSEGV, 1)])
def test_a_killed_rank_ends_the_run_and_leaves_nothing(rank: int, number: int, workers: int, killed: Any) -> None:
    killed(rank, number, 0.1, workers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ranks_killed_at_random_leave_nothing(seed: int, killed: Any) -> None:
    draw = random.Random(seed)
    number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
    killed(draw.randrange(2), number, draw.uniform(0.0, 1.0), draw.randrange(3))


# ---------------------------------------------------------------- what cannot be had


def test_what_ranks_cannot_do_is_one_sentence() -> None:
    with pytest.raises(InputError, match="DataParallel splits each batch over 2 GPUs"):
        run("even", setting=Setting(batch_size=4, ranks=2, parallel="dp"))
    with pytest.raises(InputError, match="validation"):
        run("even", extent=Extent(batches=2, validate=True))
    with pytest.raises(InputError, match="ranks must be at least 1"):
        Setting(ranks=0)
    with pytest.raises(InputError, match="choose ddp or dp"):
        Setting(parallel="fsdp")  # type: ignore[arg-type]
