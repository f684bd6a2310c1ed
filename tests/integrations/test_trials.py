"""Trials of what was observed: every second belongs to one stage, validation and ranks stand apart."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.analysis.spans import LOOP_CORES, steady, step_cores, whole
from stoker.analysis.verdict import verdict
from stoker.integrations.logs import Fetch, GaugeReading, Iterated, LoaderLog, ProcessLog, RunLog, Step
from stoker.integrations.script import answer_of
from stoker.integrations.trials import LoaderTrial, Surroundings, trials_of
from stoker.machine import inspect
from stoker.records import Gauge, parse
from stoker.report.documents import to_json, trial_document
from stoker.tuning.proposals import propose

COMMAND = ("train.py", "--lr", "1 0")


def fetch(iteration: int, worker: int | None, number: int, began_s: float, took_s: float, **fields: Any) -> Fetch:
    return Fetch(
        iteration=iteration,
        worker=worker,
        number=number,
        began_s=began_s,
        loaded_s=began_s + took_s * 0.9,
        ended_s=began_s + took_s,
        cpu_s=fields.pop("cpu_s", took_s),
        items=4,
        bytes=400,
        item_s=(took_s * 0.9 / 4,) * 4,
        **fields,
    )


def loader(number: int = 0, *, line: int = 3, trains: bool = True, **fields: Any) -> LoaderLog:
    arguments = {"num_workers": 0, "batch_size": 4, "prefetch_factor": None, "pin_memory": False}
    made = LoaderLog(
        number=number,
        kind="torch.utils.data.dataloader.DataLoader",
        site=(("/code/train.py", line, "main"),),
        made_by=(),
        arguments={**arguments, **fields.pop("arguments", {})},
        batch_size=4,
        sampler="RandomSampler" if trains else "SequentialSampler",
        batch_sampler="BatchSampler",
        dataset="data.Items",
        dataset_file=None,
        items=400,
        iterable=False,
        source=None,
        overridden={},
    )
    return replace(made, **fields)


def inline(number: int, began_s: float, *, count: int = 12, load_s: float = 0.02, step_s: float = 0.01) -> Any:
    """An iteration without workers, its steps and its fetches; the loop begins a millisecond after `iter`."""
    steps, fetches, now = [], [], began_s + 0.001
    for place in range(count):
        fetches.append(fetch(number, None, place, now, load_s, stages_s={"read": load_s / 2}))
        got = now + load_s
        done = got + step_s
        parts: dict[str, Any] = {"forward_s": step_s / 4, "backward_s": step_s / 4, "update_s": step_s / 4}
        steps.append(Step(iteration=number, asked_s=now, got_s=got, done_s=done, updates=1, **parts))
        now = done
    return Iterated(number=number, began_s=began_s, started_s=began_s + 0.001, ended_s=now + 0.002), steps, fetches


def read(made: LoaderLog, *epochs: Any) -> LoaderLog:
    iterations, steps, fetches = zip(*epochs, strict=True)
    return replace(made, iterations=iterations, steps=sum(map(tuple, steps), ()), fetches=sum(map(tuple, fetches), ()))


def process(*loaders: LoaderLog, **fields: Any) -> ProcessLog:
    made = ProcessLog(
        pid=7,
        ppid=1,
        rank=None,
        local_rank=None,
        world_size=None,
        argv=("train.py",),
        executable="python",
        python="3.11",
        torch="2.8",
        script="/code/train.py",
        sha256="abc",
        host="here",
        clock_s=0.0,
        unix_s=1e9,
        ended="exit",
        loaders=loaders,
    )
    return replace(made, **fields)


def trials(*processes: ProcessLog, around: Surroundings | None = None) -> list[LoaderTrial]:
    return trials_of(RunLog(processes=processes), COMMAND, around)


def test_every_second_belongs_to_one_stage() -> None:
    (found,) = trials(process(read(loader(), inline(0, 100.0), inline(1, 101.0))))
    trial = found.trial
    spent = {name: stage.total_s for name, stage in trial.stages.items() if stage.clock == "loop"}
    between_s = 1.0 - (0.001 + 12 * 0.03 + 0.002)  # from the end of the first epoch to the second
    expected = {
        "start": 0.002,
        "wait": 24 * 0.02,
        "forward": 24 * 0.0025,
        "backward": 24 * 0.0025,
        "update": 24 * 0.0025,
        "step": 24 * 0.0025,
        "stop": 0.004,
        "other": between_s,
    }
    assert spent == pytest.approx(expected, abs=1e-9)
    assert sum(spent.values()) == pytest.approx(trial.total_s)
    assert trial.total_s == pytest.approx(1.0 + 0.001 + 12 * 0.03 + 0.002)
    assert trial.timeline.batches == (12, 12)
    assert sum(trial.timeline.epoch_s) == pytest.approx(trial.total_s)
    assert (trial.items, trial.timeline.items[0]) == (96, 4)
    span = steady(trial)
    assert span is not None
    assert span.seconds / span.batches == pytest.approx(0.03)


def test_what_was_asked_is_the_command_the_script_and_the_place_of_the_loader() -> None:
    (found,) = trials(process(read(loader(), inline(0, 100.0))))
    task = found.trial.task
    assert task is not None
    assert (task.kind, task.mode, task.setting.num_workers) == ("run", "train", 0)
    assert task.options == {
        "command": "train.py --lr '1 0'",
        "loader": "torch.utils.data.dataloader.DataLoader",
        "file": "/code/train.py",
        "line": 3,
        "script": "/code/train.py",
        "sha256": "abc",
    }
    assert len(task.key()) == 20
    assert found.trial.workload.name == "train.py"


def test_loading_is_divided_into_stages_that_add_up() -> None:
    (found,) = trials(process(read(loader(), inline(0, 100.0))))
    run = whole(found.trial)
    assert run.worker_parts == pytest.approx({"read": 0.12, "item": 12 * 0.008, "collate": 12 * 0.002})
    judged = verdict(found.trial)
    assert judged is not None
    assert (judged.bottleneck, judged.uncertain) == ("read", False)


def test_the_clock_stands_still_during_validation() -> None:
    """Validation between two epochs, and inside a step, is no time of the training loader's trial."""
    train = read(loader(), inline(0, 100.0), inline(1, 105.0))
    middle = train.steps[5]
    assert middle.done_s is not None
    later = [
        replace(
            step,
            asked_s=step.asked_s + (step.asked_s > middle.asked_s),
            got_s=step.got_s + (step.asked_s > middle.asked_s),
        )
        for step in train.steps[:12]
    ]
    later = [replace(step, done_s=(step.done_s or 0) + (step.asked_s >= middle.asked_s)) for step in later]
    later[5] = replace(later[5], nested_s=1.0)
    fetches = [
        replace(each, **{name: getattr(each, name) + 1.0 for name in ("began_s", "loaded_s", "ended_s")})
        if each.number > 5
        else each
        for each in train.fetches[:12]
    ]
    first = replace(train.iterations[0], ended_s=(train.iterations[0].ended_s or 0) + 1.0)
    train = replace(
        train,
        iterations=(first, train.iterations[1]),
        steps=(*later, *train.steps[12:]),
        fetches=(*fetches, *train.fetches[12:]),
    )
    inner = inline(2, middle.got_s + 0.001, count=20, load_s=0.04, step_s=0.00915)
    inner = (replace(inner[0], ended_s=middle.got_s + 1.001), *inner[1:])
    valid = read(loader(1, line=9, trains=False), inner, inline(3, 103.0, count=20, load_s=0.04, step_s=0.01))
    valid = replace(valid, steps=tuple(replace(step, updates=0) for step in valid.steps))
    found, other = trials(process(train, valid))
    assert found.loader.number == 0
    assert other.trial.workload.mode == "infer"
    assert other.trial.task is not None
    assert other.trial.task.options["line"] == 9
    stages = found.trial.stages
    assert stages["step"].samples_s[5] == pytest.approx(stages["step"].samples_s[4], abs=1e-9)
    alone_s = 5.0 + 0.001 + 12 * 0.03 + 0.002 - 1.0 - (0.001 + 20 * 0.05 + 0.002)
    assert found.trial.total_s == pytest.approx(alone_s)
    assert found.trial.workers.began_s[11] < found.trial.timeline.got_s[11]


def test_two_loaders_that_are_read_side_by_side_each_have_their_own_waits() -> None:
    one, other = inline(0, 100.0), inline(1, 100.0005, load_s=0.004, step_s=0.001)
    steps = [
        replace(step, updates=0, asked_s=each.got_s + 0.001, got_s=each.got_s + 0.005)
        for step, each in zip(other[1], one[1], strict=True)
    ]
    steps = [replace(step, done_s=after.asked_s) for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True)]
    both = process(read(loader(), one), read(loader(1, line=9, trains=False), (other[0], steps, ())))
    found = trials(both)[0].trial
    assert found.timeline.got_s[1] - found.timeline.asked_s[1] == pytest.approx(0.02)
    assert found.timeline.asked_s[2] - found.timeline.asked_s[1] == pytest.approx(0.03 - 0.004)


def test_a_loader_that_was_left_after_one_batch_has_no_trial() -> None:
    checked = read(loader(trains=False), inline(0, 100.0, count=1))
    assert trials(process(checked)) == []


def test_a_step_whose_end_was_not_seen_is_left_out_with_the_time_after_it() -> None:
    iteration, steps, fetches = inline(0, 100.0)
    steps = [*steps[:-1], replace(steps[-1], done_s=None)]
    left = (replace(iteration, ended_s=None), steps, fetches)
    (found,) = trials(process(read(loader(), left, inline(1, 107.0))))
    assert found.trial.timeline.batches == (11, 12)
    assert found.trial.total_s == pytest.approx(2 * 0.001 + 23 * 0.03 + 0.002)


def test_batches_that_were_not_looked_at_are_taken_to_be_as_their_neighbours() -> None:
    iteration, steps, fetches = inline(0, 100.0)
    (found,) = trials(process(read(loader(), (iteration, steps, fetches[::3]))))
    trial = found.trial
    assert whole(trial).worker_s["read"] == pytest.approx(0.12)
    assert len(trial.workers.began_s) == 12
    assert list(trial.workers.ended_s) == pytest.approx(list(trial.timeline.got_s))
    assert trial.notes == ("loading was looked at in one batch of 3: more would have slowed the script down",)


def test_workers_take_turns() -> None:
    iteration, steps, _ = inline(0, 100.0, count=6, load_s=0.001)
    fetches = [fetch(0, place % 2, place // 2, 99.9 + place * 0.01, 0.02) for place in range(8)]
    arguments = {"num_workers": 2, "prefetch_factor": 4, "multiprocessing_context": "spawn"}
    (found,) = trials(process(read(loader(arguments=arguments), (iteration, steps, fetches[::-1]))))
    trial = found.trial
    assert trial.workers.worker == (0, 1, 0, 1, 0, 1)
    assert sorted(trial.workers.began_s) == list(trial.workers.began_s)
    setting = trial.setting
    assert (setting.num_workers, setting.prefetch_factor, setting.multiprocessing_context) == (2, 4, "spawn")


def test_on_a_gpu_the_stages_are_its_own_and_a_wait_that_it_works_through_does_not_count() -> None:
    iteration, steps, fetches = inline(0, 100.0)
    times = {"before": 0.002, "forward": 0.008, "backward": 0.010, "update": 0.001}
    steps = [replace(step, gpu_s=times if place % 4 == 0 else {}) for place, step in enumerate(steps)]
    (found,) = trials(process(read(loader(), (iteration, steps, fetches))))
    span = steady(found.trial)
    assert span is not None
    each = {name: seconds / span.batches for name, seconds in span.loop_s.items() if seconds}
    hidden_s = 0.021 - 0.01
    assert each == pytest.approx(
        {"wait": 0.02 - hidden_s, "copy": 0.002, "forward": 0.008, "backward": 0.010, "update": 0.001}
    )
    assert found.trial.workload.device == "cuda"


def test_ranks_stand_apart_and_share_the_machine() -> None:
    ranks = [
        process(read(loader(), inline(0, 100.0, load_s=0.02 * (rank + 1))), rank=rank, world_size=2, pid=7 + rank)
        for rank in (0, 1)
    ]
    first, second = trials(*ranks)
    assert [each.trial.task.options["rank"] for each in (first, second) if each.trial.task] == [0, 1]
    assert first.trial.task is not None
    assert first.trial.task.options["local_world_size"] == 2


def test_of_several_ranks_the_one_that_waits_longest_is_answered() -> None:
    """The other rank waits for it in its backward pass: that is no bottleneck of its own."""
    ranks = [
        process(
            read(loader(), inline(0, 100.0, load_s=load_s, step_s=0.05 - load_s)), rank=rank, world_size=2, pid=7 + rank
        )
        for rank, load_s in enumerate((0.01, 0.04))
    ]
    found = answer_of(RunLog(processes=tuple(ranks)), COMMAND)
    assert found.training is not None
    assert found.training.task is not None
    assert found.training.task.options["rank"] == 1
    assert [each.task.options["rank"] for each in found.ranks if each.task] == [0]
    alike = [process(read(loader(), inline(0, 100.0)), rank=rank, world_size=2, pid=7 + rank) for rank in (0, 1)]
    found = answer_of(RunLog(processes=tuple(alike)), COMMAND)
    assert found.training is not None
    assert found.training.task is not None
    assert found.training.task.options["rank"] == 0


def test_the_cpus_that_a_step_uses_are_what_loading_left() -> None:
    """A loop that is busy all the time, two thirds of it loading: its steps use one CPU, too."""
    log = read(loader(), inline(0, 100.0, count=100))
    readings = tuple(GaugeReading(at_s=100.1 + 0.5 * place, cpu_s=0.5 * place) for place in range(6))
    (found,) = trials(process(log, gauges=readings))
    assert found.trial.gauges[LOOP_CORES].samples == pytest.approx((1.0,) * 5)
    cores = step_cores(found.trial)
    assert cores == pytest.approx(1.0, abs=0.02)


def test_readings_from_outside_are_timed_by_the_trials_clock() -> None:
    around = Surroundings(gauges={"cpu_cores": Gauge(times_s=(99.0, 100.2, 100.3), samples=(9.0, 1.0, 2.0))})
    (found,) = trials(process(read(loader(), inline(0, 100.0))), around=around)
    assert found.trial.gauges["cpu_cores"].times_s == pytest.approx((0.2, 0.3))
    assert found.trial.gauges["cpu_cores"].samples == (1.0, 2.0)


def test_a_stream_gets_no_more_workers_than_it_has_parts(tmp_path: Path) -> None:
    """Several workers would each give all items of the first; the second has two shards, in a library that shares them
    out."""
    iteration, steps, fetches = inline(0, 100.0, count=40)
    fetches = [replace(each, cpu_s=0.0005) for each in fetches]
    readings = tuple(GaugeReading(at_s=100.01 + 0.5 * place, cpu_s=0.01 * place) for place in range(3))
    (tmp_path / "data.py").write_text("class Stream: ...\n")
    whole = (("data", str(tmp_path / "data.py")),)
    for streams, shards, most in ((whole, None, 1), ((*whole, ("datasets.streams", None)), 2, 2)):
        made = replace(loader(), iterable=True, streams=streams, shards=shards)
        log = process(read(made, (iteration, steps, fetches)), gauges=readings)
        (found,) = trials(log, around=Surroundings(machine=inspect()))
        assert found.trial.workload.repeats is (shards is None)
        assert {each.changes["num_workers"] for each in propose(found.trial)} <= set(range(1, most + 1))
        assert propose(found.trial)


def test_workers_that_repeat_a_stream_or_have_no_items_are_noted() -> None:
    iteration, steps, fetches = inline(0, 100.0)
    arguments = {"num_workers": 4, "batch_size": 4, "prefetch_factor": 2, "pin_memory": False}
    for streams, shards, words in (
        ((("data", None),), None, "each of 4 workers gives all of them"),
        ((("datasets.streams", None),), 2, "only 2 of 4 workers have items"),
    ):
        made = replace(loader(), iterable=True, streams=streams, shards=shards, arguments=arguments)
        (found,) = trials(process(read(made, (iteration, steps, fetches))))
        assert any(words in note for note in found.trial.notes)


def test_a_saved_trial_is_read_back_and_says_what_to_change() -> None:
    """Loading sleeps for two thirds of the time: two workers hide it behind the step, whatever the machine."""
    iteration, steps, fetches = inline(0, 100.0, count=40)
    fetches = [replace(each, cpu_s=0.0005) for each in fetches]
    readings = tuple(GaugeReading(at_s=100.01 + 0.5 * place, cpu_s=0.01 * place) for place in range(3))
    log = process(read(loader(), (iteration, steps, fetches)), gauges=readings)
    (found,) = trials(log, around=Surroundings(machine=inspect()))
    document = to_json(trial_document(found.trial, ()))
    assert parse(document.encode()) == found.trial
    best, *_ = propose(found.trial)
    assert best.before_s == pytest.approx(0.03)
    assert best.changes["num_workers"] in (3, 4)
    assert best.after_s == pytest.approx(0.01, rel=0.05)
