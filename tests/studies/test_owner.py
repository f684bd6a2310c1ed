"""Owners of claims: who is alive, who is dead, and whom nobody here can see."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stoker.studies.owner import Owner, forget, is_alive, new_owner

changed = msgspec.structs.replace


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "stoker.db"


def owner_of_a_process(store: Path) -> tuple[Owner, subprocess.Popen[str]]:
    """Another process that has made itself an owner and waits."""
    code = (
        "import sys; from pathlib import Path; from stoker.records import encode; "
        "from stoker.studies.owner import new_owner; "
        f"print(encode(new_owner(Path({str(store)!r}))).decode(), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return msgspec.json.decode(process.stdout.readline(), type=Owner), process


def test_this_process_is_alive_until_it_is_forgotten(store: Path) -> None:
    owner = new_owner(store)
    other = new_owner(store)
    assert owner.pid == os.getpid()
    assert is_alive(owner, store)
    assert is_alive(other, store)
    forget(owner, store)
    assert not is_alive(owner, store)
    assert is_alive(other, store)
    forget(other, store)


def test_another_process_is_alive_until_it_ends(store: Path) -> None:
    owner, process = owner_of_a_process(store)
    with process:
        assert is_alive(owner, store)
        process.kill()
    assert not is_alive(owner, store)


def test_a_process_that_has_ended_and_was_not_yet_waited_for_is_dead(store: Path) -> None:
    owner, process = owner_of_a_process(store)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(owner, store)
    with process:
        process.wait()


def test_a_pid_used_again_or_from_before_a_boot_is_dead(store: Path) -> None:
    owner = new_owner(store)
    assert not is_alive(changed(owner, started=owner.started - 1), store)
    assert not is_alive(changed(owner, boot="an earlier boot"), store)
    forget(owner, store)


def test_a_process_of_another_container_is_alive_while_it_holds_its_lock(store: Path) -> None:
    """The PID says nothing across namespaces: here it is even that of this very process."""
    owner, process = owner_of_a_process(store)
    elsewhere = changed(owner, namespace="pid:[1]", pid=os.getpid())
    assert not elsewhere.is_visible
    with process:
        assert is_alive(elsewhere, store)
        assert is_alive(elsewhere, store), "to look must not take the lock away"
        process.kill()
    assert not is_alive(elsewhere, store)


def test_who_cannot_be_judged_counts_as_alive(store: Path) -> None:
    owner = new_owner(store)
    assert is_alive(changed(owner, namespace="pid:[1]", lock=None), store)
    forget(owner, store)


def test_a_forked_process_has_no_part_in_its_parents_locks(store: Path) -> None:
    owner = new_owner(store)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if new_owner(store).lock != owner.lock and is_alive(owner, store) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_alive(changed(owner, namespace="pid:[1]"), store)
    forget(owner, store)
