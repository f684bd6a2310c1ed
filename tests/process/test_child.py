"""Calls in a child process: whatever becomes of the child, the caller goes on."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.errors import InputError, MachineError
from stoker.events import AnyEvent, OnEvent, Progress
from stoker.process import child


def double(number: int, emit: OnEvent) -> int:
    emit(Progress(what="seen", done=number))
    return number * 2


def refuse(emit: OnEvent) -> int:
    raise InputError("batch size must be at least 1, got 0")


def stumble(emit: OnEvent) -> int:
    raise KeyError("missing")


def die(number: int, emit: OnEvent) -> int:
    print("last words", flush=True)  # noqa: T201 - what a child prints must not reach the caller's stdout
    os.kill(os.getpid(), number)
    return 0


def hang_with_a_child(emit: OnEvent) -> int:
    pid = os.fork()
    if pid == 0:
        threading.Event().wait()
    emit(Progress(what="pids", done=os.getpid(), of=pid))
    threading.Event().wait()
    return 0


def hang_with_a_semaphore(emit: OnEvent) -> int:
    lock = multiprocessing.get_context("spawn").Lock()
    emit(Progress(what=lock._semlock.name, done=0))  # type: ignore[attr-defined]
    threading.Event().wait()
    return 0


def surroundings(emit: OnEvent) -> dict[str, str]:
    return {"folder": str(Path.cwd()), "word": os.environ.get("STOKER_TEST_WORD", "")}


def wrong_kind(emit: OnEvent) -> Any:
    return "seven"


def pids_of(event: AnyEvent) -> list[int]:
    assert isinstance(event, Progress)
    assert event.of is not None
    return [event.done, event.of]


def all_gone(pids: list[int]) -> bool:
    """Whether these processes are dead, or die now that they have been killed."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_a_result_and_events_come_back() -> None:
    events: list[AnyEvent] = []
    ended = child.run(double, (21,), kind=int, on_event=events.append)
    assert child.value(ended) == 42
    assert events == [Progress(what="seen", done=21)]


def test_an_error_of_ours_is_raised_as_what_it_is() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        child.value(child.run(refuse, (), kind=int))


def test_any_other_error_keeps_its_traceback() -> None:
    ended = child.run(stumble, (), kind=int)
    assert ended.how == "raised"
    assert ended.failure is not None
    assert "stumble" in ended.failure.trace
    with pytest.raises(InputError, match=r"KeyError: 'missing', at .*test_child.py:\d+ in stumble"):
        child.value(ended)


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (9, "SIGKILL"), (7, "SIGBUS"), (40, "signal 40")])
def test_a_death_by_signal_is_named_and_the_next_call_works(number: int, name: str) -> None:
    ended = child.run(die, (number,), kind=int)
    assert (ended.how, ended.signal) == ("killed", name)
    assert "last words" in ended.output
    assert child.value(child.run(double, (2,), kind=int)) == 4


def test_time_runs_out_for_the_child_and_all_below_it() -> None:
    pids: list[int] = []
    ended = child.run(hang_with_a_child, (), kind=int, timeout_s=1, on_event=lambda event: pids.extend(pids_of(event)))
    assert ended.how == "timed_out"
    assert "hang_with_a_child" in ended.stacks
    assert len(pids) == 2
    assert all_gone(pids)


def test_a_child_that_says_nothing_is_ended_by_the_stall_limit() -> None:
    ended = child.run(hang_with_a_child, (), kind=int, stall_s=1)
    assert ended.how == "timed_out"


def test_an_interrupted_caller_leaves_no_processes() -> None:
    pids: list[int] = []

    def interrupt(event: AnyEvent) -> None:
        pids.extend(pids_of(event))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run(hang_with_a_child, (), kind=int, on_event=interrupt)
    assert len(pids) == 2
    assert all_gone(pids)
    assert child.value(child.run(double, (3,), kind=int)) == 6


def test_the_child_sees_the_callers_folder_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_TEST_WORD", "coal")
    seen = child.value(child.run(surroundings, (), kind=dict[str, str]))
    assert seen == {"folder": str(tmp_path), "word": "coal"}


def has_imported(name: str, emit: OnEvent) -> bool:
    return name in sys.modules


def test_names_that_are_no_text_go_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STOKER_TEST_WORD", os.fsdecode(b"caf\xe9"))
    seen = child.value(child.run(surroundings, (), kind=dict[str, str]))
    assert seen == {"folder": f"{tmp_path}/caf?", "word": "caf?"}
    with pytest.raises(InputError, match=r"no such file: caf\?"):
        child.value(child.run(refuse_a_file, (), kind=int))


def refuse_a_file(emit: OnEvent) -> int:
    raise InputError(f"no such file: {os.fsdecode(b'caf' + bytes([0xE9]))}")


def test_a_server_imports_modules_and_the_libraries_that_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fine.py").write_text("", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with contextlib.closing(child.ForkServer(["colorsys"], ["broken", "fine"])) as server:
        for name, expected in (("colorsys", True), ("fine", True), ("broken", False)):
            assert child.value(child.run(has_imported, (name,), kind=bool, server=server)) == expected
    with contextlib.closing(child.ForkServer(["broken"])) as server:
        with pytest.raises(MachineError, match="could not start: ZeroDivisionError"):
            child.run(double, (1,), kind=int, server=server)


def test_calls_share_a_server_that_has_imported_what_they_need() -> None:
    first = child.shared(["colorsys"])
    assert child.shared() is first
    second = child.shared(["colorsys", "wave"])
    assert second is not first
    assert child.shared(["wave"]) is second
    assert child.value(child.run(double, (4,), kind=int, server=first)) == 8, "who has it may go on using it"


def wait_for(mine: str, other: str, emit: OnEvent) -> bool:
    """Whether the other call has begun while this one runs."""
    Path(mine).touch()
    deadline = time.monotonic() + 30
    while not Path(other).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return Path(other).exists()


def test_calls_of_two_threads_run_at_the_same_time(tmp_path: Path) -> None:
    found: list[bool] = []

    def call(mine: str, other: str) -> None:
        found.append(child.value(child.run(wait_for, (str(tmp_path / mine), str(tmp_path / other)), kind=bool)))

    threads = [threading.Thread(target=call, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True]


def test_a_call_that_ends_badly_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    found: list[bool] = []

    def call() -> None:
        found.append(child.value(child.run(wait_for, (str(tmp_path / "a"), str(tmp_path / "b")), kind=bool)))

    thread = threading.Thread(target=call)
    thread.start()
    assert child.run(die, (9,), kind=int).signal == "SIGKILL"
    assert child.run(hang_with_a_child, (), kind=int, timeout_s=0.5).how == "timed_out"
    with pytest.raises(KeyboardInterrupt):
        child.run(hang_with_a_child, (), kind=int, on_event=interrupt)
    (tmp_path / "b").touch()
    thread.join()
    assert found == [True]


def interrupt(event: AnyEvent) -> None:
    raise KeyboardInterrupt


def echo(emit: OnEvent) -> bool:
    print(f"out {sys.stdin.readline().strip()}", flush=True)  # noqa: T201 - what the test looks for
    print("err", file=sys.stderr, flush=True)  # noqa: T201
    return True


SCRIPT = """
import sys
from tests.process.test_child import child, echo
ended = child.run(echo, (), kind=bool, output=sys.argv[1])
print("kept", repr(ended.output), flush=True)
"""


@pytest.mark.parametrize("output", ["captured", "passed"])
def test_the_callers_input_and_output_can_be_passed_to_the_child(output: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, output], input="coal", capture_output=True, text=True, check=True
    )
    if output == "passed":
        assert (ran.stdout, ran.stderr) == ("out coal\nkept ''\n", "err\n")
    else:
        assert (ran.stdout, ran.stderr) == ("kept 'out \\nerr\\n'\n", "")


def test_what_cannot_be_sent_says_what_to_give_instead() -> None:
    with pytest.raises(InputError, match="give functions that make the model"):
        child.run(double, (threading.Lock(),), kind=int)


def test_a_killed_server_is_replaced() -> None:
    server = child.shared()
    server.wait_ready()
    os.kill(server.pid, signal.SIGKILL)
    server._process.wait()
    assert child.value(child.run(double, (5,), kind=int)) == 10


def test_a_server_that_is_killed_while_it_is_given_a_call_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = child.shared()
    server.wait_ready()
    real = child._payload

    def kill(*arguments: Any) -> bytes:
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        return real(*arguments)

    monkeypatch.setattr(child, "_payload", kill)
    with pytest.raises(MachineError, match="ended from outside"):
        child.run(double, (5,), kind=int)
    monkeypatch.undo()
    assert child.value(child.run(double, (5,), kind=int)) == 10


def test_an_interrupt_while_a_call_is_sent_leaves_the_next_one_as_it_was() -> None:
    def interrupt_send(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    server = child.shared()
    server.wait_ready()
    os.kill(server.pid, signal.SIGSTOP)  # it takes nothing more, so the call below is half sent
    before = signal.signal(signal.SIGALRM, interrupt_send)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            child.run(length, (bytes(2**24),), kind=int)
    finally:
        signal.signal(signal.SIGALRM, before)
        os.kill(server.pid, signal.SIGCONT)
    assert child.value(child.run(length, (bytes(2**24),), kind=int)) == 2**24


def length(data: bytes, emit: OnEvent) -> int:
    return len(data)


def test_a_call_that_cannot_be_sent_leaves_no_file_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(InputError):
            child.run(double, (threading.Lock(),), kind=int)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_children_die_when_the_caller_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    caller = os.fork()
    if caller == 0:

        def write_down(event: AnyEvent) -> None:
            note.write_text(" ".join(map(str, pids_of(event))))

        child.run(hang_with_a_child, (), kind=int, on_event=write_down)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    pids = [int(pid) for pid in note.read_text().split()]
    assert all_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="semaphores are files on Linux alone")
def test_a_child_that_is_killed_leaves_no_semaphore_behind() -> None:
    seen: list[Path] = []

    def look(event: AnyEvent) -> None:
        assert isinstance(event, Progress)
        seen.append(Path("/dev/shm", f"sem.{event.what.removeprefix('/')}"))
        assert seen[0].exists()

    ended = child.run(hang_with_a_semaphore, (), kind=int, on_event=look, stall_s=2)
    assert ended.how == "timed_out"
    assert [path.exists() for path in seen] == [False]
