"""Promises that hostile inputs, faults and signals once broke: one sentence, the right status, nothing lost."""

import contextlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.atomic import check_target, write_whole
from stoker.errors import InputError, MachineError
from tests.commands import apart, here

PROBES = Path(__file__).parents[1] / "answers" / "probes"
WORKLOAD = f"{Path(__file__).parents[1] / 'workloads' / 'planted.py'}:plain"
PROFILE = ("profile", WORKLOAD, "-q", "-b", "2", "--batches", "2", "--mode", "infer", "--device", "sleep:1ms")


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    import gzip

    stored = sorted(PROBES.glob("*.json*"))[0]
    data = stored.read_bytes()
    path = tmp_path / "probes.json"
    path.write_bytes(gzip.decompress(data) if stored.suffix == ".gz" else data)
    return path


def stoker(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def one_sentence(done: subprocess.CompletedProcess[str]) -> None:
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("stoker: ")


# ---------------------------------------------------------------- output


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_document_that_does_not_fit_the_disk_is_no_success(probes: Path, tmp_path: Path, unbuffered: str) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "stoker", "predict", "--probes", str(probes), "--grid", "--json"]
    with out.open("wb") as file:
        done = subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=limited,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert "too large" in done.stderr


def test_a_terminal_that_is_not_unicode_still_shows_the_table() -> None:
    done = stoker(*PROFILE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "Bottleneck" in done.stdout or "items/s" in done.stdout


def test_an_unforeseen_error_is_one_sentence_and_its_traceback_can_be_had(probes: Path) -> None:
    command = ("predict", "--probes", str(probes), "--cores", "5e-324", "-b", "8", "-w", "2")
    plain = stoker(*command)
    assert plain.returncode == 1
    one_sentence(plain)
    assert "STOKER_DEBUG=1" in plain.stderr
    full = stoker(*command, env={**os.environ, "STOKER_DEBUG": "1"})
    assert full.returncode == 1
    assert "Traceback" in full.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--faster", "decode=1e-320", "-b", "8", "-w", "1"),
        ("-b", "100000000000000000000", "-w", "1"),
        ("-b", "8", "--items", "100000000000000000000"),
        ("-b", "8", "-w", "1024", "--prefetch", "1024"),
    ],
)
def test_numbers_beyond_all_reason_are_one_sentence(probes: Path, options: tuple[str, ...]) -> None:
    done = here("predict", "--probes", str(probes), *options)
    assert done.returncode in (1, 2)
    assert "should not have happened" not in done.stderr
    one_sentence(done)


def test_a_deeply_nested_file_is_one_sentence(tmp_path: Path) -> None:
    nested = tmp_path / "deep.json"
    nested.write_text('{"a":' * 200_000 + "1" + "}" * 200_000)
    done = here("predict", "--probes", str(nested), "-b", "8", "-w", "2")
    assert done.returncode == 1
    one_sentence(done)


def test_a_message_of_megabytes_is_cut_and_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.cli.main import _say

    _say("a\x07b\n" + "x" * 10_000_000)
    written = capsys.readouterr().err
    assert len(written) < 3000
    assert "\x07" not in written
    assert written.count("\n") == 1


# ---------------------------------------------------------------- --save


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "new"


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("mine")
    path.chmod(0o444)
    with pytest.raises(InputError, match="read-only"):
        write_whole(path, b"new")
    assert path.read_text() == "mine"


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_whole(link, b"gone")
    assert stat.S_ISCHR(link.stat().st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(InputError, match="not a regular file"):
        check_target(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_what_cannot_be_saved_is_refused_before_the_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = here(*PROFILE, "--save", str(tmp_path / "fifo"))
    assert done.returncode == 1
    assert "not a regular file" in done.stderr


def test_a_full_disk_hides_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MachineError("cannot write x.json: No space left on device")

    monkeypatch.setattr("stoker.report.documents.write_whole", full)
    done = here(*PROFILE, "--json", "--save", str(tmp_path / "x.json"))
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "done"
    assert "No space left" in done.stderr


# ---------------------------------------------------------------- children and signals


METRICS = """
import torch, stoker
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.zeros(4), 0
def workload():
    return stoker.Workload(model=torch.nn.Linear(4, 2), dataset=Data(), validation=Data(),
                           loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW,
                           metric=lambda output, target: float('{value}'))
def numbered():
    return stoker.Workload(model=torch.nn.Linear(4, 2), dataset=Data(), name=123)
"""


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_metric_that_is_no_number_loses_nothing(tmp_path: Path, value: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(METRICS.replace("{value}", value))
    done = apart(
        "profile", f"{file}:workload", "--validate", "-q", "-b", "4", "--epochs", "1", "--device", "cpu", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scores"] == [None]


def test_a_name_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(METRICS.replace("{value}", "1"))
    done = here("profile", f"{file}:numbered", "-q", "--device", "cpu", "--mode", "infer")
    assert done.returncode == 1
    one_sentence(done)
    assert "name must be a text, got int" in done.stderr


def test_garbage_in_a_pipe_is_a_failure_and_no_traceback() -> None:
    from stoker.process.wire import RESULT, Failure, read_outcome

    found = read_outcome(RESULT, b"\xff garbage", int)
    assert isinstance(found, Failure)
    assert "cannot be read" in found.sentence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_python_drops_arrives_all_the_same(number: signal.Signals, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys, time
from stoker.cli import main as cli
signal.signal({int(number)}, signal.SIG_DFL)
cli._Signals().install()
class Once:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        for _ in range(1000):
            pass
once = Once()
try:
    del once                      # the signal's exception is raised in a destructor, and dropped
    time.sleep(20)
except cli.Interrupted as error:
    sys.exit(error.status)
sys.exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 128 + int(number), done.stderr


def test_ctrl_c_while_the_command_is_imported_is_one_sentence() -> None:
    code = """
import os, runpy, signal, sys
class Typer:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Typer())
sys.argv = ["stoker", "doctor"]
runpy.run_module("stoker", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stoker: interrupted\n")


def images(folder: Path) -> Path:
    from PIL import Image

    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (20, 20)).save(folder / name / f"{index}.jpg")
    return folder


def test_a_fifo_among_the_images_is_passed_over(tmp_path: Path) -> None:
    folder = images(tmp_path / "set")
    os.mkfifo(folder / "a" / "0p.jpg")
    done = apart("prepare", str(folder), "-o", str(tmp_path / "out"), "--image-size", "16", "-q", "--json")
    assert done.returncode == 0, done.stderr


def hang_or_fail(task: int) -> None:
    if task == 0:
        time.sleep(0.2)
        raise ValueError("this one fails")
    time.sleep(600)


def test_preparing_ends_even_if_a_worker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker import atomic

    monkeypatch.setattr(atomic, "_GRACE_S", 0.5)
    began = time.monotonic()
    with pytest.raises(ValueError, match="this one fails"):
        atomic.in_parallel(hang_or_fail, [0, 1], what="testing", processes=2)
    assert time.monotonic() - began < 60


def test_files_of_a_users_own_beside_the_output_stay(tmp_path: Path) -> None:
    folder = images(tmp_path / "set")
    (tmp_path / ".o.partial-mine").mkdir()
    (tmp_path / ".o.partial-mine" / "f").write_text("precious")
    done = apart("prepare", str(folder), "-o", str(tmp_path / "o"), "--image-size", "16", "-q")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".o.partial-mine" / "f").read_text() == "precious"
    (tmp_path / ".p.lock").write_text("precious")
    done = apart("prepare", str(folder), "-o", str(tmp_path / "p"), "--image-size", "16", "-q")
    assert done.returncode == 1
    assert "in the way" in done.stderr
    assert (tmp_path / ".p.lock").read_text() == "precious"


def test_a_class_whose_name_is_not_unicode_is_prepared(tmp_path: Path) -> None:
    folder = images(tmp_path / "set")
    (folder / "b").rename(folder / os.fsdecode(b"b\xff"))
    done = apart("prepare", str(folder), "-o", str(tmp_path / "out"), "--image-size", "16", "-q")
    assert done.returncode == 0, done.stderr


def test_too_few_files_for_a_worker_is_one_sentence_and_ends(tmp_path: Path) -> None:
    folder = images(tmp_path / "set")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (17, 17))

    command = [
        sys.executable,
        "-m",
        "stoker",
        "prepare",
        str(folder),
        "-o",
        str(tmp_path / "o"),
        "--image-size",
        "16",
        "-q",
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, preexec_fn=few)
        assert done.returncode in (0, 1)
        if done.returncode:
            assert "Traceback" not in done.stderr
        return
    pytest.fail("it hangs")
