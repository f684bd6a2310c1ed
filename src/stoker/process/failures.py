"""What ended a trial: an outcome, and one sentence with the user's own file and line."""

import re
import signal
import sysconfig
import traceback
from pathlib import Path

from stoker.errors import StokerError
from stoker.machine import host
from stoker.records import Outcome, Problem, Record
from stoker.units import format_bytes

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_WORKER_DIED = re.compile(r"DataLoader worker \(pid(\(s\))? [\d, ]+\)")
_CAUGHT = re.compile(r"^Caught (?P<kind>\w+) in (?P<place>.+)\.\nOriginal Traceback", re.MULTILINE)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed")
TRAIN_REMEDY = "a workload without a loss is run without gradients: say --mode train if it trains"
_SHM_REMEDY = (
    "use fewer workers or a smaller batch, or give the container more shared memory (docker run --shm-size=8g)"
)


class WorkerDied(Exception):
    """A loader worker was ended by a signal. Raised from the loader's own error, which does not always say so."""

    def __init__(self, number: int) -> None:
        super().__init__(f"a loader worker was ended by {signal_name(number)}")
        self.signal = number


class TextRules(Record, frozen=True):
    """How much of a text a problem takes over."""

    trace_chars: int = 6000
    """The end of a traceback: the frames nearest to the error."""
    output_chars: int = 4000
    """The end of what a process printed."""
    sentence_chars: int = 300
    """Of torch's sentence about memory, which goes on with advice."""
    line_chars: int = 200
    """Of the last line that a process printed."""


RULES = TextRules()


def of_error(error: BaseException) -> tuple[Outcome, Problem]:
    """The outcome of a run that ended with this exception."""
    cause = error.__cause__ if isinstance(error, WorkerDied) and error.__cause__ is not None else error
    text = str(cause)
    if _is_out_of_memory(cause) or _says_no_memory(cause, text):
        return "oom", _out_of_memory(text)
    if isinstance(error, WorkerDied):
        return "crashed", _worker_died(signal_name(error.signal))
    trace = trace_of(error)
    if isinstance(error, RuntimeError) and _WORKER_DIED.search(text):
        return "crashed", _worker_died(_signal_in(trace))
    caught = _CAUGHT.search(text)
    if caught:
        kind, message = _last_exception(text, caught["kind"])
        place = f" in {_short(caught['place'])}"
    else:
        kind, message, place = type(error).__name__, text, ""
    is_stokers = isinstance(error, StokerError)
    sentence = message if is_stokers and message else f"{kind}{place}: {message}" if message else f"{kind}{place}"
    remedy = _noted(trace) or (TRAIN_REMEDY if "does not require grad" in sentence else None)
    return "failed", Problem(
        sentence=sentence, where=own_place(trace), remedy=remedy, detail=trace[-RULES.trace_chars :]
    )


def of_trace(sentence: str, trace: str) -> tuple[Outcome, Problem]:
    """The outcome of a run that ended with an error of which the caller has only the text."""
    if _WORKER_DIED.search(sentence):
        return "crashed", _worker_died(_signal_in(trace))
    detail = trace[-RULES.trace_chars :]
    return "failed", Problem(sentence=sentence.splitlines()[0], where=own_place(trace), detail=detail)


def of_signal(name: str | None, output: str, who: str = "the trial's process") -> tuple[Outcome, Problem]:
    """The outcome of a run whose own process died."""
    if name == "SIGBUS":
        return "crashed", _bus_error(who)
    last = output.strip().splitlines()[-1:]
    detail = output[-RULES.output_chars :] or None
    sentence = f"{who} was ended by {name}" if name else f"{who} ended without an error"
    if last:
        sentence += f"; the last it printed: {last[0][: RULES.line_chars]}"
    return "crashed", Problem(sentence=sentence, detail=detail)


def signal_name(number: int) -> str:
    """The signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def of_hang(stacks: str, limit: str) -> Problem:
    """Where the processes stood when time ran out."""
    place = own_place(stacks, newest_first=True)
    sentence = f"{limit}; it stands in your code" if place else limit
    return Problem(sentence=sentence, where=place, detail=stacks[-RULES.trace_chars :] or None)


def own_place(trace: str, *, newest_first: bool = False) -> str | None:
    """The innermost place of a traceback that is in the user's own code, as file:line in function."""
    frames = [match for match in _FRAME.finditer(trace) if _is_users(match["file"])]
    if not frames:
        return None
    frame = frames[0] if newest_first else frames[-1]
    return f"{_relative(frame['file'])}:{frame['line']} in {frame['function'].strip()}"


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = Path(file)
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    stoker = Path(__file__).parents[1]
    return not any(path.is_relative_to(folder) for folder in (*library, stoker)) and "site-packages" not in path.parts


def _relative(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch's error is recognised by its name, because callers of this module may not have imported torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _says_no_memory(error: BaseException, text: str) -> bool:
    return isinstance(error, RuntimeError) and any(words in text.lower() for words in _NO_MEMORY)


def _out_of_memory(text: str) -> Problem:
    first = text.strip().splitlines()[0] if text.strip() else "out of memory"
    where = "device memory" if "CUDA" in text else "host memory"
    return Problem(sentence=f"out of {where}: {first[: RULES.sentence_chars]}", remedy="use a smaller batch")


def _signal_in(trace: str) -> str | None:
    """The signal that ended a worker, in torch's words, from somewhere in the chain of errors."""
    killed = re.search(r"is killed by signal: (.+?)\.", trace)
    return killed[1] if killed else None


def _worker_died(name: str | None) -> Problem:
    """`name` is a signal as Python or as torch calls it."""
    if name in ("Bus error", "SIGBUS"):
        return _bus_error("a loader worker")
    if name in ("Killed", "SIGKILL"):
        return Problem(
            sentence="a loader worker was killed (SIGKILL), by someone or by the kernel for want of memory",
            remedy="look at the host's memory; use fewer workers, a smaller batch or a smaller prefetch",
        )
    return Problem(sentence=f"a loader worker was ended by {name}" if name else "a loader worker ended unexpectedly")


def _bus_error(who: str) -> Problem:
    shm = host.shared_memory()
    seen = f" ({format_bytes(shm.total_bytes)})" if shm else ""
    return Problem(sentence=f"{who} died of a bus error: /dev/shm{seen} was too small", remedy=_SHM_REMEDY)


def _last_exception(text: str, kind: str) -> tuple[str, str]:
    """The message of the exception that a worker's text ends with, without Stoker's notes."""
    found = list(re.finditer(rf"^(?:[\w.]*\.)?{re.escape(kind)}(?:: (?P<message>.*))?$", text, re.MULTILINE))
    return kind, (found[-1]["message"] or "") if found else ""


def _noted(trace: str) -> str | None:
    notes = re.findall(r"^Stoker: (.+)$", trace, re.MULTILINE)
    return str(notes[-1]) if notes else None


def _short(place: str) -> str:
    return place.replace("DataLoader worker process", "loader worker")
