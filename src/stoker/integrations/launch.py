"""Runs a user's own command, unchanged, with our bootstrap folder first on PYTHONPATH, and collects what it wrote.

The command is a child of this process, in its process group and on its terminal. Signals that reach only this process
are passed on; those of the terminal reach the child by themselves.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from stoker.errors import InputError, MachineError
from stoker.integrations.bootstrap.journal import VARIABLE, Settings
from stoker.integrations.bootstrap.loaders import SETTABLE
from stoker.records import Record

BOOTSTRAP = Path(__file__).parent / "bootstrap"
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH")
_KERNEL = 0x80
"""The code of a signal that the terminal sent, to every process of the group."""
_NAMES = {
    "batch": "batch_size",
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "persistent": "persistent_workers",
    "pin": "pin_memory",
    "method": "multiprocessing_context",
}


class Companion(Protocol):
    """Who looks at a script while it runs. See `surroundings.Reader`."""

    def started(self, pid: int) -> None: ...
    def look(self) -> None: ...
    def exiting(self) -> None: ...
    def ended(self) -> None: ...


class LaunchRules(Record, frozen=True):
    """How the launcher waits."""

    look_s: float = 0.2
    """Between two looks of a companion: what follows the last batch that is observed may wait as long."""


RULES = LaunchRules()


class Launched(Record, frozen=True):
    """A command that has ended. `status` is 128 plus the signal's number where a signal ended it."""

    command: tuple[str, ...]
    status: int
    logs: tuple[Path, ...]


def launch(
    command: Sequence[str],
    directory: Path,
    *,
    batches: int = 200,
    stop: bool = False,
    overrides: Mapping[str, Any] | None = None,
    sites: Sequence[str] = (),
    headroom: bool = False,
    probes: bool = False,
    environment: Mapping[str, str] | None = None,
    companion: Companion | None = None,
    output: Literal["passed", "dropped"] = "passed",
) -> Launched:
    """Run the command and wait for its end.

    Each of its processes that reads a loader writes a file into `directory` (see `bootstrap.observer`): the first
    `batches` batches of its training loader. With `stop`, it ends there with status 0. `overrides` are arguments of
    the training loader; `sites` ("file:line") say which one that is, otherwise it is the one that shuffles. With
    `headroom`, the script goes on for some steps with batches that it had before, and ends then. With `probes`, a
    script that is stopped loads some batches again before it ends: see `bootstrap.contention`. Dropped `output` goes
    nowhere, and nothing can be typed. Raises `InputError` where the command cannot be run.
    """
    environment = os.environ if environment is None else environment
    program, words = command_line(command, environment)
    settings = Settings(
        str(directory.resolve()),
        batches,
        stop=stop or headroom,
        overrides=dict(overrides or {}),
        sites=list(sites),
        headroom=headroom,
        probes=probes and (stop or headroom),
    )
    environment = observed_environment(settings, environment)
    status = _run(program, words, environment, companion, drops=output == "dropped")
    return Launched(command=tuple(words), status=status, logs=collected(directory))


def collected(directory: Path) -> tuple[Path, ...]:
    """The files that observed processes wrote: loops first."""
    order = ("loop", "probe", "worker", "problem")
    found = [path for path in directory.glob("*.jsonl") if path.name.partition("-")[0] in order]
    return tuple(sorted(found, key=lambda path: (order.index(path.name.partition("-")[0]), path.name)))


@contextmanager
def log_directory() -> Iterator[Path]:
    """A folder for the files of one run, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="stoker-run-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def command_line(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[str, list[str]]:
    """The program to execute and its words: a script, and what begins with a dash, are the user's Python's; the rest
    is a program. Raises `InputError` where there is no such script or program."""
    if not command:
        raise InputError("there is nothing to run; name a script or a command, as in: stoker run train.py")
    first = command[0]
    if first.startswith("-") or (first.endswith((".py", ".pyw", ".pyz")) and Path(first).is_file()):
        python = user_python(environment)
        return python, [python, *command]
    if first.endswith(".py"):
        raise InputError(f"there is no script {first}")
    program = shutil.which(first, path=environment.get("PATH"))
    if program is not None:
        return program, list(command)
    program = shutil.which(first, path=str(Path(sys.executable).parent))  # an environment that is not active
    if program is None:
        raise InputError(f"there is no command {first}")
    return program, [program, *command[1:]]


def user_python(environment: Mapping[str, str] = os.environ) -> str:
    """The interpreter of the user's environment: the active one's, otherwise ours."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environment.get(variable)
        if prefix and Path(prefix).resolve() != Path(sys.prefix).resolve():
            python = Path(prefix) / "bin" / "python"
            if python.exists():
                return str(python)
    return sys.executable


def overrides_from(text: str) -> dict[str, Any]:
    """Loader arguments out of `workers=8,prefetch=4`; raises `InputError` where they make no sense."""
    overrides: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, separator, value = (each.strip() for each in part.partition("="))
        argument = _NAMES.get(name, name)
        if not separator or argument not in SETTABLE:
            known = ", ".join([*_NAMES, "in_order"])
            raise InputError(f"{part!r} sets no loader argument; write NAME=VALUE with a name of: {known}")
        overrides[argument] = _value(argument, value)
    return overrides


def _value(argument: str, text: str) -> Any:
    if argument in ("persistent_workers", "pin_memory", "in_order"):
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if text.lower() not in words:
            raise InputError(f"{argument} must be true or false, got {text}")
        return words[text.lower()]
    if argument == "multiprocessing_context":
        if text not in ("fork", "spawn", "forkserver"):
            raise InputError(f"a start method must be fork, spawn or forkserver, got {text}")
        return text
    least = 0 if argument == "num_workers" else 1
    if not text.isdigit() or int(text) < least:
        raise InputError(f"{argument} must be a whole number of at least {least}, got {text}")
    return int(text)


def observed_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which each Python process observes its loaders."""
    folder = str(BOOTSTRAP)
    if os.pathsep in folder:
        raise MachineError(f"PYTHONPATH cannot hold a path with {os.pathsep!r}: Stoker is installed in {folder}")
    paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: settings.encode()}


def _run(
    program: str, words: list[str], environment: dict[str, str], companion: Companion | None, *, drops: bool
) -> int:
    """Run a program to its end, passing on signals; its status."""
    numbers = {getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers | {signal.SIGCHLD})
    try:
        pid = _spawn(program, words, environment, before, drops=drops)
        if companion is not None:
            companion.started(pid)
        ours: int | None = None
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            wait_s = RULES.look_s if companion is not None else _FOREVER_S
            received = signal.sigtimedwait(numbers | {signal.SIGCHLD}, wait_s)
            if received is not None and received.si_signo != signal.SIGCHLD:
                if received.si_code != _KERNEL:
                    os.kill(pid, received.si_signo)
                if drops and received.si_signo in _ENDING:
                    ours = received.si_signo
            if companion is not None:
                companion.look()
        if companion is not None:
            companion.exiting()
        _, status = os.waitpid(pid, 0)
        if companion is not None:
            companion.ended()
        while (late := signal.sigtimedwait(numbers, 0)) is not None:  # the terminal's reached the script by itself
            if late.si_code != _KERNEL:
                ours = late.si_signo
        if ours is not None:
            os.kill(os.getpid(), ours)
        return _status(status)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_FOREVER_S = 3600.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a rerun and what comes after it: a script whose output goes nowhere is ours, not the user's."""


def _spawn(program: str, words: list[str], environment: dict[str, str], mask: Collection[int], *, drops: bool) -> int:
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    try:
        return os.posix_spawn(
            program,
            words,
            environment,
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            file_actions=nowhere if drops else [],
        )
    except OSError as error:
        raise InputError(f"{program} cannot be run: {error.strerror}") from None


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
