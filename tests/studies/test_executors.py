"""The executor for this machine: real trials, real limits, and everything that can go wrong is an outcome."""

import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from stoker.analysis.machines import label
from stoker.events import AnyEvent, SubjectKnown
from stoker.process import child
from stoker.records import CandidateTrial, Convergence, Extent, Limit, Setting, Task, Trial, WorkloadSpec, parse
from stoker.studies import executors
from stoker.studies.executors import LocalExecutor, execute
from stoker.studies.fingerprint import fingerprint_of
from stoker.studies.grid import grid_from, task_of

WORKLOADS = Path(__file__).parents[1] / "workloads"


SMALL = f"{WORKLOADS / 'small.py'}:inference"


def profile(spec: str = SMALL, device: str = "sleep:0s", items: int | None = 8, **setting: Any) -> Task:
    return Task(
        workload=WorkloadSpec(spec=spec, items=items),
        mode="infer",
        device=device,
        setting=Setting(**{"batch_size": 4, **setting}),
        extent=Extent(batches=None, warmup=0),
    )


def test_a_profile_is_a_trial_with_figures_samples_and_versions() -> None:
    events: list[AnyEvent] = []
    task = profile()
    finished = LocalExecutor().run(task, timeout_s=60.0, on_event=events.append)
    assert finished.outcome == "done"
    assert finished.document is not None
    trial = parse(finished.document)
    assert isinstance(trial, Trial)
    assert trial.task == task
    assert trial.when is not None
    assert finished.figures["seconds"] == trial.total_s
    assert finished.figures["run_items"] == 8
    assert finished.figures["first_batch_s"] == trial.first_batch_s
    assert finished.wall_s >= trial.total_s
    assert set(finished.versions) == {"stoker", "torch", "python"}
    assert any(isinstance(event, SubjectKnown) for event in events)


def converge(spec: str, **more: Any) -> Task:
    fixed: dict[str, Any] = {"workload": spec, "device": "cpu", "against": 16, "seeds": 1, **more}
    grid = grid_from({"kind": "converge", "fixed": fixed, "axes": {"batch_size": [4]}})
    return next(iter(grid.tasks().values())).task


def test_a_comparison_of_batch_sizes_has_what_each_learned() -> None:
    task = converge(f"{WORKLOADS / 'small.py'}:workload", epochs=3)
    finished = execute(task)
    assert finished.outcome == "done", finished.problem
    assert finished.document is not None
    found = parse(finished.document)
    assert isinstance(found, Convergence)
    assert found.task == task
    assert found.task.key() == task.key(), "as stoker converge notes it"
    figures = finished.figures
    assert figures["pairs"] == 1
    assert figures["validation_loss"] < figures["against_validation_loss"], "four times as many updates"
    assert figures["metric_scale"] == 100
    assert figures["loss_difference"] > 0
    assert figures["loss_margin"] is None
    assert figures["finding"].startswith("one seed proves nothing")


def test_a_workload_without_a_validation_set_is_a_failure() -> None:
    finished = execute(converge(SMALL, updates=2))
    assert finished.outcome == "failed"
    assert "there is no validation set" in str(finished.problem)


def test_a_limit_has_its_batch() -> None:
    options: dict[str, str | int | float | bool] = {"method": "trace", "gpu_memory": "2GiB"}
    task = Task(kind="limit", workload=WorkloadSpec(spec="resnet18", data="device"), mode="infer", options=options)
    finished = execute(task)
    assert finished.outcome == "done", finished.problem
    assert finished.document is not None
    found = parse(finished.document)
    assert isinstance(found, Limit)
    assert finished.figures["max_batch"] == found.max_batch > 1


def test_a_candidate_of_a_search_has_stages_that_add_up_and_reads_its_weights(tmp_path: Path) -> None:
    for place in range(8):
        target = tmp_path / f"class {place % 2}" / f"{place}.png"
        target.parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), (place * 30, 0, 0)).save(target)
    cell: dict[str, Any] = {"workload": "squeezenet1_1", "items": 8, "batch_size": 4, "part": "last:25%"}
    more: dict[str, Any] = {
        "classes": 2,
        "labels": "random",
        "scores": "ridge",
        "resamples": 0,
        "warmup": 1,
        "weights_cache": "warm",
    }
    task = task_of({**cell, **more, "data": str(tmp_path)}, "search")
    finished = execute(task, timeout_s=120.0)
    assert finished.outcome == "done", finished.problem
    assert finished.document is not None
    trial = parse(finished.document)
    assert isinstance(trial, CandidateTrial)
    assert trial.task == task, "the file is no part of what was asked"
    figures = finished.figures
    stages = [figures[f"{name}_s"] for name in ("prepare_model", "prepare_data", "copy", "forward", "score")]
    assert sum(stages) == pytest.approx(figures["seconds"])
    assert figures["weights_read_s"] > 0
    assert figures["stored_input_s"] > 0
    assert figures["run_items"] == 8
    assert figures["candidate_s"] >= figures["seconds"]
    assert 0 < figures["blocks_run"] < figures["blocks"]


@pytest.mark.parametrize(
    ("task", "outcome", "sentence"),
    [
        (profile("resnet1"), "failed", "resnet1"),
        (profile(device="sleep:tomorrow"), "failed", "tomorrow"),
        (profile(device="sleep:20s"), "timed_out", "not over after 2 s"),
        (
            profile(f"{WORKLOADS / 'planted.py'}:dies", "cpu", None, num_workers=1),
            "crashed",
            "a loader worker was killed",
        ),
        (Task(workload=None), "failed", "a live Workload object cannot be part of a study"),
    ],
)
def test_whatever_goes_wrong_is_an_outcome_with_a_sentence(task: Task, outcome: str, sentence: str) -> None:
    finished = execute(task, timeout_s=2.0 if "20s" in task.device else 60.0)
    assert finished.outcome == outcome, finished.problem
    assert finished.problem is not None
    assert sentence in finished.problem


def test_an_error_of_ours_does_not_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: Any) -> Any:
        raise KeyError("missing")

    monkeypatch.setitem(executors._RUN, "profile", stumble)
    finished = execute(profile())
    assert (finished.outcome, finished.problem) == ("failed", "KeyError: 'missing'")


def test_an_interrupt_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(executors._RUN, "profile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        execute(profile())


def test_what_runs_in_another_thread_ends_when_it_is_stopped() -> None:
    executor, ended = LocalExecutor(), []
    started = threading.Event()

    def watch(event: AnyEvent) -> None:
        if isinstance(event, SubjectKnown):
            started.set()

    def run() -> None:
        ended.append(executor.run(profile(device="sleep:60s"), timeout_s=None, on_event=watch))

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    executor.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert ended[0].outcome == "failed"
    assert execute(profile()).outcome == "done", "the next one has a server of its own"


def test_a_machine_is_known_by_its_processor_and_gpus_and_not_by_its_versions() -> None:
    changed = msgspec.structs.replace
    machine = LocalExecutor().machines()[0]
    same = changed(machine, software=changed(machine.software, torch="99"))
    assert fingerprint_of(same) == fingerprint_of(machine)
    assert fingerprint_of(changed(machine, cpu=changed(machine.cpu, usable=machine.cpu.usable + 1))) != fingerprint_of(
        machine
    )
    assert label({"cpu": "EPYC", "usable_cpus": 2.0, "gpus": []}) == "2 CPUs (EPYC), no GPU"
    gpus = [{"name": "H200", "memory_bytes": 1}] * 2
    assert label({"cpu": "EPYC", "usable_cpus": 1.5, "gpus": gpus}) == "1.5 CPUs (EPYC), 2 × H200"


def test_no_folder_of_sockets_is_left_behind_by_a_run_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="stk-") as folder:

        def watch(event: AnyEvent) -> None:
            if isinstance(event, SubjectKnown):
                seen.append([each.name for each in Path(folder).iterdir()])

        child.stop()  # so that the next server knows this folder for temporary files
        monkeypatch.setenv("TMPDIR", folder)
        finished = LocalExecutor().run(profile(device="sleep:5s", num_workers=2), timeout_s=4.0, on_event=watch)
        child.stop()
        assert finished.outcome == "timed_out"
        assert any(name.startswith("stoker-sockets-") for name in seen[0])
        assert [each for each in Path(folder).iterdir() if each.name.startswith(("stoker-", "pymp-"))] == []


def test_workers_run_where_the_name_of_the_temporary_folder_is_too_long_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    child.stop()
    monkeypatch.setenv("TMPDIR", str(folder))
    finished = LocalExecutor().run(profile(num_workers=1), timeout_s=60.0, on_event=None)
    child.stop()
    assert finished.outcome == "done", finished.problem
