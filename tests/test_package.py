"""The wheel as others install it: built, installed into a fresh environment, and run there."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environ, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, and with the dependencies of this one: torch is too large to install again."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    wheel = next(folder.glob("stoker-*.whl"))
    run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "env"


@pytest.mark.slow
def test_the_installed_command_describes_this_machine(fresh: Path) -> None:
    found = json.loads(run(fresh / "bin" / "stoker", "doctor", "--json", "--quiet", cwd=fresh))
    assert found["kind"] == "machine"
    assert found["software"]["torch"]
    assert "Usage: stoker" in run(fresh / "bin" / "stoker", "--help", cwd=fresh)


@pytest.mark.slow
def test_the_wheel_is_typed_and_carries_its_licence(fresh: Path) -> None:
    code = (
        "import stoker, importlib.metadata as m; from pathlib import Path;"
        "home = Path(stoker.__file__).parent; found = m.metadata('stoker');"
        "print(home, (home / 'py.typed').is_file(), found['License-Expression'], found['License-File'])"
    )
    home, typed, licence, file = run(fresh / "bin" / "python", "-c", code, cwd=fresh).split()
    assert Path(home).is_relative_to(fresh)
    assert (typed, licence, file) == ("True", "Apache-2.0", "LICENSE")
