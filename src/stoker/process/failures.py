"""What ended a trial, as an outcome and one sentence with the person's own file and line."""

import re
import signal
import sysconfig
import traceback
from pathlib import Path

from stoker.errors import StokerError
from stoker.machine import host
from stoker.records import Outcome, Problem
from stoker.units import format_bytes

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_WORKER_DIED = re.compile(r"DataLoader worker \(pid(\(s\))? [\d, ]+\)")
_ENDED_BY = "Stoker: worker ended by "
_CAUGHT = re.compile(r"^Caught (?P<kind>\w+) in (?P<place>.+)\.\nOriginal Traceback", re.MULTILINE)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed")
_TRAIN_REMEDY = "a workload without a loss is run without gradients: say --mode train if it trains"
_SHM_REMEDY = (
    "use fewer workers or a smaller batch, or give the container more shared memory (docker run --shm-size=8g)"
)


def of_error(error: BaseException) -> tuple[Outcome, Problem]:
    """What an exception that came out of the loop says."""
    text = str(error)
    if _is_out_of_memory(error) or _says_no_memory(error, text):
        return "oom", _out_of_memory(text)
    trace = trace_of(error)
    if (isinstance(error, RuntimeError) and _WORKER_DIED.search(text)) or _ENDED_BY in trace:
        return "crashed", _worker_died(trace)
    caught = _CAUGHT.search(text)
    if caught:
        kind, message = _last_exception(text, caught["kind"])
        place = f" in {_short(caught['place'])}"
    else:
        kind, message, place = type(error).__name__, text, ""
    ours = isinstance(error, StokerError)
    sentence = message if ours and message else f"{kind}{place}: {message}" if message else f"{kind}{place}"
    remedy = _noted(trace) or (_TRAIN_REMEDY if "does not require grad" in sentence else None)
    return "failed", Problem(sentence=sentence, where=own_place(trace), remedy=remedy, detail=trace[-6000:])


def of_trace(sentence: str, trace: str) -> tuple[Outcome, Problem]:
    """What an error says that reached the caller only as text."""
    if _WORKER_DIED.search(sentence) or _ENDED_BY in trace:
        return "crashed", _worker_died(trace)
    return "failed", Problem(sentence=sentence.splitlines()[0], where=own_place(trace), detail=trace[-6000:])


def of_signal(name: str | None, output: str) -> tuple[Outcome, Problem]:
    """What the death of the trial's own process says."""
    if name == "SIGBUS":
        return "crashed", _bus_error("the trial's process")
    last = output.strip().splitlines()[-1:]
    detail = output[-4000:] or None
    sentence = f"the trial's process was ended by {name}" if name else "the trial's process ended without a word"
    if last:
        sentence += f"; the last it printed: {last[0][:200]}"
    return "crashed", Problem(sentence=sentence, detail=detail)


def signal_name(number: int) -> str:
    """As people know it; the real-time ones between the first and the last have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def of_hang(stacks: str, limit: str) -> Problem:
    """Where the processes stood when time ran out."""
    place = own_place(stacks, newest_first=True)
    sentence = f"{limit}; it stands in code of yours" if place else limit
    return Problem(sentence=sentence, where=place, detail=stacks[-6000:] or None)


def own_place(trace: str, *, newest_first: bool = False) -> str | None:
    """The innermost place of a traceback that is in the person's own code, as file:line in function."""
    frames = [match for match in _FRAME.finditer(trace) if _is_theirs(match["file"])]
    if not frames:
        return None
    frame = frames[0] if newest_first else frames[-1]
    return f"{_relative(frame['file'])}:{frame['line']} in {frame['function'].strip()}"


def _is_theirs(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = Path(file)
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = Path(__file__).parents[1]
    return not any(path.is_relative_to(folder) for folder in (*library, ours)) and "site-packages" not in path.parts


def _relative(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch's own error by its name: this file serves callers that never import torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _says_no_memory(error: BaseException, text: str) -> bool:
    return isinstance(error, RuntimeError) and any(words in text.lower() for words in _NO_MEMORY)


def _out_of_memory(text: str) -> Problem:
    first = text.strip().splitlines()[0] if text.strip() else "out of memory"
    where = "device memory" if "CUDA" in text else "host memory"
    return Problem(sentence=f"out of {where}: {first[:300]}", remedy="use a smaller batch")


def _worker_died(trace: str) -> Problem:
    """By which signal, as the loader or the worker's exit code tells, somewhere in the chain of errors."""
    killed = re.search(r"is killed by signal: (.+?)\.|Stoker: worker ended by (\w+)\.", trace)
    name = killed.group(1) or killed.group(2) if killed else None
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
    """The message of the exception that a worker's text ends with, without our own notes."""
    found = list(re.finditer(rf"^(?:[\w.]*\.)?{re.escape(kind)}(?:: (?P<message>.*))?$", text, re.MULTILINE))
    return kind, (found[-1]["message"] or "") if found else ""


def _noted(trace: str) -> str | None:
    notes = re.findall(r"^Stoker: (.+)$", trace, re.MULTILINE)
    return str(notes[-1]) if notes else None


def _short(place: str) -> str:
    return place.replace("DataLoader worker process", "loader worker")
