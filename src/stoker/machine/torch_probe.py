"""What torch itself says of CUDA, asked in a child process so that neither torch nor CUDA touches the caller.

The child runs this very file, so it may import nothing of Stoker's.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 90.0


class TorchFacts(NamedTuple):
    """`problem` says in one sentence why torch cannot use a GPU."""

    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    usable: bool = False
    problem: str | None = None


def ask(timeout_s: float = TIMEOUT_S) -> TorchFacts:
    """Start a child that imports torch and runs one small kernel."""
    command = [sys.executable, "-P", str(Path(__file__).resolve())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"torch did not answer within {timeout_s:g} s")
    except OSError as error:
        return TorchFacts(problem=f"could not start {sys.executable} to ask torch: {error.strerror}")
    return _answer(done)


def ask_here() -> TorchFacts | None:
    """The same from this process, where torch already holds CUDA, and running nothing; None where it does not."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return _facts(torch, problem=None)


def _answer(done: "subprocess.CompletedProcess[str]") -> TorchFacts:
    lines = done.stdout.splitlines()
    try:
        return TorchFacts(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        said = done.stderr.strip().splitlines()
        return TorchFacts(problem=f"torch failed (exit status {done.returncode}): {said[-1] if said else 'no message'}")


def _look() -> TorchFacts:
    try:
        import torch
    except ImportError as error:
        return TorchFacts(problem=f"torch cannot be imported: {_sentence(error)}")
    return _facts(torch, problem=_why_not(torch))


def _facts(torch: Any, *, problem: str | None) -> TorchFacts:
    return TorchFacts(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        cudnn=_cudnn(torch.backends.cudnn.version()) if torch.version.cuda else None,
        usable=problem is None,
        problem=problem,
    )


def _why_not(torch: Any) -> str | None:
    """None where a small kernel ran; `is_available` alone also says yes to a GPU that this build has no code for."""
    if not torch.backends.cuda.is_built():
        return f"this torch ({torch.__version__}) is built without CUDA"
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            if not torch.cuda.is_available():
                torch.cuda.init()
            torch.ones(8, device="cuda").sum().item()
        except Exception as error:
            return f"torch cannot use the GPU: {_sentence(raised[-1].message if raised else error)}"
    return None


def _sentence(error: object) -> str:
    """The first line of a message that may go on for a page, without the place in torch's sources."""
    first = str(error).strip().partition("\n")[0].partition(" (Triggered internally")[0]
    return first or type(error).__name__


def _cudnn(number: int | None) -> str | None:
    """8902 is 8.9.2; from version 9 on a digit more is used, and 91002 is 9.10.2."""
    if number is None:
        return None
    major = number // 10_000 if number >= 90_000 else number // 1000
    rest = number % 10_000 if number >= 90_000 else number % 1000
    return f"{major}.{rest // 100}.{rest % 100}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_look()._asdict()) + "\n")
