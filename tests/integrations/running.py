"""Runs a script twice: bare, and observed. What the two print can be compared."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stoker
from stoker.integrations.launch import collected
from stoker.integrations.logs import RunLog, read_logs

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
_DRIVER = """
import json, sys
from pathlib import Path
import stoker
from stoker.integrations.launch import launch
asked = json.loads(sys.argv[1])
sys.exit(launch(asked["command"], Path(asked["directory"]), **asked["options"]).status)
"""
_LIMIT_S = 240


@dataclass(frozen=True)
class Done:
    """A script that has ended."""

    status: int
    out: str
    errors: str
    directory: Path | None = None

    @property
    def log(self) -> RunLog:
        assert self.directory is not None
        return read_logs(collected(self.directory))

    def json(self) -> Any:
        """The last line that it printed."""
        return json.loads(self.out.splitlines()[-1])


def script(name: str) -> str:
    return str(SCRIPTS / name)


def bare(*command: str, cwd: Path | None = None, **variables: str) -> Done:
    """As without Stoker."""
    return _run([sys.executable, *command], cwd, variables)


def observed(directory: Path, *command: str, cwd: Path | None = None, options: Any = None, **variables: str) -> Done:
    """As `stoker run` runs it; the logs lie in the directory."""
    process = start(directory, *command, cwd=cwd, options=options, **variables)
    out, errors = process.communicate(timeout=_LIMIT_S)
    return Done(process.returncode, out, errors, directory)


def start(
    directory: Path, *command: str, cwd: Path | None = None, options: Any = None, **variables: str
) -> "subprocess.Popen[str]":
    """The launcher, started; the script's environment is this one with the variables."""
    directory.mkdir(exist_ok=True)
    options = {"environment": {**os.environ, **variables}, **(options or {})}
    asked = json.dumps({"command": command, "directory": str(directory), "options": options})
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVER, asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1])},
    )


def _run(command: Sequence[str], cwd: Path | None, variables: dict[str, str]) -> Done:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **variables},
        check=False,
        timeout=_LIMIT_S,
    )
    return Done(done.returncode, done.stdout, done.stderr)
