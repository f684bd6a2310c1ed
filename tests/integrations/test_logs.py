"""Reading the files back: steps out of rows, whatever the loops did."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InputError
from stoker.integrations import logs
from stoker.integrations.bootstrap.hooks import BATCH, END

MS = 1_000_000
HEAD = {
    "kind": "process",
    "version": 1,
    "role": "loop",
    "pid": 7,
    "ppid": 1,
    "argv": ["train.py"],
    "executable": "python",
    "cwd": "/",
    "python": "3.11",
    "torch": "2.8",
    "script": None,
    "sha256": None,
    "rank": None,
    "local_rank": None,
    "world_size": None,
    "clock_ns": 0,
    "unix_s": 0.0,
    "host": "h",
}


def _loader(number: int) -> dict[str, Any]:
    return {
        "kind": "loader",
        "loader": number,
        "class": "DataLoader",
        "site": [["train.py", 3 + number, "main"]],
        "made_by": [],
        "source": None,
        "overridden": {},
        "arguments": {"num_workers": 2},
        "batch_size": 4,
        "sampler": "RandomSampler",
        "batch_sampler": "BatchSampler",
        "dataset": {"class": "D", "file": None, "items": 9, "iterable": False},
    }


def _iteration(number: int, loader: int, began_ms: int, workers: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "kind": "iteration",
        "iteration": number,
        "loader": loader,
        "began_ns": began_ms * MS,
        "ended_ns": (began_ms + 1) * MS,
        "workers": list(workers),
        "grad": True,
        "main_thread": True,
    }


def _row(iteration: int, asked_ms: int, got_ms: int, outcome: int = BATCH, forward: int = 0, updates: int = 0) -> Any:
    return [iteration, asked_ms * MS, got_ms * MS, outcome, 0, 0, forward * MS, 0, 0, 0, 0, updates, 0]


def _written(path: Path, *lines: Any, end: str = "\n") -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return path


def _read(tmp_path: Path, *lines: Any) -> logs.ProcessLog:
    (process,) = logs.read_logs([_written(tmp_path / "loop-7-1.jsonl", HEAD, *lines)]).processes
    return process


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)


def test_a_step_lasts_until_the_next_batch_is_asked_for(tmp_path: Path) -> None:
    rows = [_row(0, 1, 5, forward=2, updates=1), _row(0, 15, 16, updates=1), _row(0, 20, 21, END)]
    process = _read(tmp_path, _loader(0), _iteration(0, 0, 0), {"kind": "row", "rows": rows})
    (loader,) = process.loaders
    assert [(_ms(each.wait_s), _ms(each.step_s), _ms(each.forward_s)) for each in loader.steps] == [
        (4, 10, 2),
        (1, 4, 0),
    ]
    assert loader.iterations[0].ended_s == pytest.approx(0.021)
    assert process.training is loader


def test_the_last_step_ends_with_the_observer_or_is_unknown(tmp_path: Path) -> None:
    rows = {"kind": "row", "rows": [_row(0, 1, 5)]}
    for reason, step in (("batches", 7), ("exit", None)):
        process = _read(
            tmp_path, _loader(0), _iteration(0, 0, 0), rows, {"kind": "end", "reason": reason, "ns": 12 * MS}
        )
        assert process.ended == reason
        assert [_ms(each.step_s) for each in process.loaders[0].steps] == [step]


def test_a_loop_inside_a_step_is_taken_off_it(tmp_path: Path) -> None:
    inner = [_row(1, 11, 13, forward=1), _row(1, 15, 16, forward=1), _row(1, 18, 19, END, forward=5, updates=1)]
    rows = [_row(0, 1, 5, forward=2), *inner, _row(0, 40, 41, END)]
    lines = [_loader(0), _loader(1), _iteration(0, 0, 0), _iteration(1, 1, 10), {"kind": "row", "rows": rows}]
    train, valid = _read(tmp_path, *lines).loaders
    (step,) = train.steps
    assert (_ms(step.nested_s), _ms(step.step_s), _ms(step.forward_s), step.updates) == (9, 26, 7, 1)
    assert [_ms(each.step_s) for each in valid.steps] == [2, 2]
    assert (train.trains, valid.trains) == (True, False)


def test_a_loop_inside_that_was_left_ends_with_its_last_batch(tmp_path: Path) -> None:
    rows = [_row(0, 1, 5), _row(1, 11, 13), _row(0, 30, 31, END)]
    lines = [_loader(0), _loader(1), _iteration(0, 0, 0), _iteration(1, 1, 10), {"kind": "row", "rows": rows}]
    train, valid = _read(tmp_path, *lines).loaders
    assert (_ms(train.steps[0].nested_s), valid.steps[0].step_s) == (3, None)


def test_loaders_that_are_read_side_by_side_wait_for_each_other(tmp_path: Path) -> None:
    rows = [_row(0, 2, 5), _row(1, 5, 9, forward=3, updates=1), _row(0, 20, 22), _row(1, 22, 23, updates=1)]
    rows += [_row(0, 30, 31, END)]
    lines = [_loader(0), _loader(1), _iteration(0, 0, 0), _iteration(1, 1, 1), {"kind": "row", "rows": rows}]
    first, second = _read(tmp_path, *lines).loaders
    assert [(_ms(each.nested_s), _ms(each.step_s), each.updates) for each in first.steps] == [(4, 11, 1), (1, 7, 1)]
    assert [_ms(each.step_s) for each in second.steps] == [11, None]
    assert _ms(second.steps[0].nested_s) == 2


def test_what_workers_loaded_belongs_to_the_iteration_they_worked_for(tmp_path: Path) -> None:
    def fetch(epoch: int, began_ms: int) -> Any:
        return [
            epoch,
            0,
            began_ms * MS,
            (began_ms + 4) * MS,
            (began_ms + 5) * MS,
            MS,
            2,
            64,
            [2 * MS, MS],
            {"read": MS},
        ]

    def worker(pid: int, began_ms: int) -> dict[str, Any]:
        return {"kind": "process", "role": "worker", "pid": pid, "worker": 1, "began_ns": began_ms * MS}

    iterations = [_iteration(0, 0, 0, (21,)), _iteration(1, 0, 50, (22,)), _iteration(2, 1, 10, (30,))]
    iterations += [_iteration(3, 1, 70, (30,))]
    loop = _written(tmp_path / "loop-7-1.jsonl", HEAD, _loader(0), _loader(1), *iterations)
    paths = [
        loop,
        _written(tmp_path / "worker-21-1.jsonl", worker(21, 2), {"kind": "fetch", "rows": [fetch(0, 3)]}),
        _written(tmp_path / "worker-22-1.jsonl", worker(22, 52), {"kind": "fetch", "rows": [fetch(0, 53)]}),
        _written(
            tmp_path / "worker-30-1.jsonl",
            worker(30, 12),
            {"kind": "fetch", "rows": [fetch(0, 13), fetch(1, 73)]},
            {"kind": "send", "rows": [[18 * MS, MS], [79 * MS, 2 * MS]]},
        ),
    ]
    (process,) = logs.read_logs(paths).processes
    assert [[each.iteration for each in loader.fetches] for loader in process.loaders] == [[0, 1], [2, 3]]
    one = process.loaders[1].fetches[0]
    assert (_ms(one.items_s), _ms(one.collate_s), one.worker, one.items, one.bytes) == (4, 1, 1, 2, 64)
    assert process.loaders[1].send_s == pytest.approx((1e-3, 2e-3))


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [HEAD, _loader(0), _iteration(0, 0, 0), {"kind": "row", "rows": [_row(0, 1, 5)]}]
    path = _written(tmp_path / "loop-7-1.jsonl", *lines, end='\n{"kind": "row", "ro')
    (process,) = logs.read_logs([path]).processes
    assert process.ended is None
    assert len(process.loaders[0].steps) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"kind": "process"}\n', "is no log of an observed process"),
        ('{"kind": "process", "role": "loop", "version": 99}\n', "is a log of version 99; this reads 1"),
        ("nonsense\n{}\n", "line 1 of loop-7-1.jsonl is not JSON"),
        ("[1]\n", "line 1 of loop-7-1.jsonl is no JSON object"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "loop-7-1.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        logs.read_logs([path])


def test_problems_are_told_once_each(tmp_path: Path) -> None:
    line = {"kind": "problem", "pid": 1, "what": "send", "error": "no"}
    paths = [_written(tmp_path / f"problem-{pid}-1.jsonl", line) for pid in (1, 2)]
    assert logs.read_logs(paths).problems == ("send: no",)
