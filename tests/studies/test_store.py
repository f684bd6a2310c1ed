"""The store: claims, attempts, several processes, and files that it must not touch."""

import errno
import hashlib
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from stoker.errors import InputError, MachineError, StokerError
from stoker.machine.storage import storage
from stoker.records import Task, WorkloadSpec, encode
from stoker.studies import schema
from stoker.studies import store as store_module
from stoker.studies.grid import Grid
from stoker.studies.owner import Owner, new_owner
from stoker.studies.store import Slot, Store, TrialRow

OLD = Path(__file__).parent / "stores"
MACHINE = "machine-1"
SLOTS = [Slot(f"key{number}", 0) for number in range(4)]


def task(number: int) -> Task:
    return Task(workload=WorkloadSpec(spec=f"model{number}"))


def filled(path: Path, machine: str = MACHINE) -> Store:
    """A store with one study of four tasks."""
    store = Store(path)
    tasks = {slot.key: (task(number), {"workload": f"model{number}"}) for number, slot in enumerate(SLOTS)}
    store.add_study("night", Grid(name="night"), "grid", tasks)
    store.add_machine(machine, {"cpu": "a CPU"})
    return store


def row(slot: Slot = SLOTS[0], **changes: object) -> TrialRow:
    made = TrialRow(key=slot.key, repeat=slot.repeat, machine=MACHINE, outcome="done", figures={"seconds": 1.5})
    return msgspec.structs.replace(made, **changes)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stoker.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with filled(path) as opened:
        yield opened


# ---------------------------------------------------------------- studies, trials, attempts


def test_what_is_stored_comes_back(path: Path) -> None:
    with filled(path) as store:
        document = b'{"kind":"trial"}' * 100
        assert store.record(row(document=document, problem="late", wall_s=2.0, versions={"torch": "2.8"})) == 0
    with Store(path, create=False) as store:
        (found,) = store.trials("night", documents=True)
        assert (found.document, found.problem, found.wall_s) == (document, "late", 2.0)
        assert (found.figures, found.versions) == ({"seconds": 1.5}, {"torch": "2.8"})
        assert store.trials("night")[0].document is None
        assert store.tasks("night")["key1"] == (task(1), {"workload": "model1"}, True)
        assert [each["name"] for each in store.studies()] == ["night"]
        assert store.machines() == {MACHINE: {"cpu": "a CPU"}}


def test_raw_samples_are_compressed(path: Path) -> None:
    with filled(path) as store:
        store.record(row(document=b"0.123456789," * 100_000))
    assert path.stat().st_size < 200_000


def test_a_changed_grid_keeps_the_trials_of_what_it_no_longer_asks_for(store: Store) -> None:
    store.record(row(SLOTS[3]))
    store.add_study("night", Grid(name="night"), "grid", {"key0": (task(0), {})})
    assert store.keys("night") == {"key0": True, "key1": False, "key2": False, "key3": False}
    assert store.count("night") == 1


def test_a_finished_trial_never_changes_and_a_retry_is_a_further_attempt(store: Store) -> None:
    store.record(row(outcome="oom", figures={}))
    assert store.claim(SLOTS[:1], MACHINE, jobs=1, retries={}).finished == (SLOTS[0],)
    assert store.claim(SLOTS[:1], MACHINE, jobs=1, retries={SLOTS[0]: 0}).slot == SLOTS[0]
    assert store.record(row()) == 1
    assert [(each.attempt, each.outcome) for each in store.trials("night")] == [(0, "oom"), (1, "done")]
    assert store.last_attempts(MACHINE) == {SLOTS[0]: ("done", 1)}
    assert store.counts("night", 1)[MACHINE] == ({"done": 1}, 1, 2)
    assert store.claim(SLOTS[:1], MACHINE, jobs=1, retries={SLOTS[0]: 0}).slot is None, "it was retried once"


def test_machines_have_trials_of_their_own(store: Store) -> None:
    store.add_machine("machine-2", {})
    store.record(row())
    assert store.claim(SLOTS[:1], "machine-2", jobs=1, retries={}).slot == SLOTS[0]
    store.record(row(machine="machine-2"))
    assert set(store.counts("night", 1)) == {MACHINE, "machine-2"}


def test_a_trial_of_a_machine_or_task_that_nobody_added_is_refused(store: Store) -> None:
    with pytest.raises(StokerError, match="FOREIGN KEY"):
        store.record(row(machine="unknown"))


# ---------------------------------------------------------------- claims


def test_a_claim_is_held_until_its_trial_is_recorded(store: Store, path: Path) -> None:
    assert store.claim(SLOTS, MACHINE, jobs=1, retries={}).slot == SLOTS[0]
    with Store(path) as other:
        refused = other.claim(SLOTS, MACHINE, jobs=1, retries={})
        assert refused.slot is None
        assert [claim.key for claim in refused.waits_for] == ["key0"]
        store.record(row())
        found = other.claim(SLOTS, MACHINE, jobs=1, retries={})
        assert (found.slot, found.finished) == (SLOTS[1], (SLOTS[0],))
    assert store.claims() == [], "the other connection is closed"


def test_more_jobs_run_beside_each_other_but_never_the_same(store: Store, path: Path) -> None:
    with Store(path) as other:
        assert store.claim(SLOTS, MACHINE, jobs=2, retries={}).slot == SLOTS[0]
        assert other.claim(SLOTS, MACHINE, jobs=2, retries={}).slot == SLOTS[1]
        assert store.claim(SLOTS, MACHINE, jobs=2, retries={}).slot is None
        assert other.claim(SLOTS, MACHINE, jobs=3, retries={}).slot == SLOTS[2]


def test_jobs_count_over_all_studies_of_the_file(store: Store) -> None:
    store.add_machine("machine-2", {})
    store.claim(SLOTS[:1], "machine-2", jobs=1, retries={})
    assert store.claim(SLOTS[1:], MACHINE, jobs=1, retries={}).slot is None


def test_a_claim_that_is_given_back_is_free(store: Store) -> None:
    store.claim(SLOTS, MACHINE, jobs=1, retries={})
    store.release(SLOTS[0], MACHINE)
    assert store.claim(SLOTS, MACHINE, jobs=1, retries={}).slot == SLOTS[0]


def planted(path: Path, owner: Owner) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO claims VALUES ('key0', 0, ?, ?, 'now')", (MACHINE, encode(owner).decode()))


def test_claims_of_dead_owners_end_at_once(store: Store, path: Path) -> None:
    alive = new_owner(path)
    for dead in (
        msgspec.structs.replace(alive, pid=2**22 + 1),
        msgspec.structs.replace(alive, started=alive.started - 1),
        msgspec.structs.replace(alive, boot="an earlier boot"),
        msgspec.structs.replace(alive, namespace="pid:[1]", lock=(alive.lock or 0) + 1),
    ):
        planted(path, dead)
        assert store.claims() == []
        assert store.claim(SLOTS, MACHINE, jobs=1, retries={}).slot == SLOTS[0]
        store.release(SLOTS[0], MACHINE)
    planted(path, alive)
    assert store.claim(SLOTS, MACHINE, jobs=1, retries={}).slot is None


def test_a_claim_of_a_connection_that_was_closed_is_free_in_the_same_process(path: Path) -> None:
    filled(path).close()
    first = Store(path)
    first.claim(SLOTS, MACHINE, jobs=1, retries={})
    first.close()
    with Store(path) as second:
        assert second.claim(SLOTS, MACHINE, jobs=1, retries={}).slot == SLOTS[0]


# ---------------------------------------------------------------- several processes


CLAIMER = """
import sys
from pathlib import Path
from stoker.studies.store import Slot, Store, TrialRow
path, name = Path(sys.argv[1]), sys.argv[2]
slots = [Slot(f"key{number}", repeat) for repeat in range(20) for number in range(4)]
ran = 0
with Store(path) as store:
    store.add_machine("machine-1", {"cpu": "a CPU"})
    while slots:
        found = store.claim(slots, "machine-1", jobs=8, retries={})
        slots = [slot for slot in slots if slot not in {*found.finished, found.slot}]
        if found.slot:
            store.record(TrialRow(key=found.slot.key, repeat=found.slot.repeat, machine="machine-1", outcome="done",
                                  figures={"by": name}))
            ran += 1
print(ran)
"""


OPENER = """
import sys
from pathlib import Path
from stoker.studies.store import Store
Store(Path(sys.argv[1])).close()
"""


def test_four_processes_that_share_a_file_run_each_slot_once(path: Path) -> None:
    filled(path).close()
    command = [sys.executable, "-c", CLAIMER, str(path)]
    drivers = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(4)]
    counts = [int(driver.communicate()[0]) for driver in drivers]
    with Store(path) as store:
        rows = store.trials("night")
        assert sum(counts) == len(rows) == 80
        assert len({(each.key, each.repeat) for each in rows}) == 80
        assert {each.attempt for each in rows} == {0}


def test_processes_that_create_a_file_at_the_same_time_agree(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"{number}.db"
        makers = [subprocess.Popen([sys.executable, "-c", OPENER, str(path)], stderr=subprocess.PIPE) for _ in range(4)]
        assert [maker.communicate()[1] for maker in makers] == [b""] * 4
        assert [maker.returncode for maker in makers] == [0] * 4
        filled(path).close()


def test_a_second_connection_of_this_process_costs_the_first_none_of_its_locks(path: Path) -> None:
    """A plain open and close of the file would: then another process takes away the log that we still write."""
    with filled(path) as store:
        Store(path, create=False).close()
        subprocess.run([sys.executable, "-c", OPENER, str(path)], check=True)
        store.record(row())
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT COUNT(*) FROM trials").fetchone() == (1,)


def test_what_was_recorded_is_there_after_a_kill_in_the_middle_of_a_transaction(path: Path) -> None:
    filled(path).close()
    code = """
import os, sys
from pathlib import Path
from stoker.studies.store import Slot, Store, TrialRow
store = Store(Path(sys.argv[1]))
store.record(TrialRow(key="key0", repeat=0, machine="machine-1", outcome="done"))
store._db.execute("BEGIN IMMEDIATE")
store._db.execute("DELETE FROM trials")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    with Store(path) as store:
        store.check()
        assert len(store.trials("night")) == 1


# ---------------------------------------------------------------- schemas


def test_there_is_a_database_of_every_schema() -> None:
    assert {path.name for path in OLD.glob("*.db")} == {f"schema-{number}.db" for number in range(1, schema.SCHEMA + 1)}


@pytest.mark.parametrize("name", [path.name for path in sorted(OLD.glob("*.db"))])
def test_a_database_of_every_schema_opens(name: str, path: Path) -> None:
    shutil.copy(OLD / name, path)
    with Store(path, create=False) as store:
        store.check()
        assert [each["name"] for each in store.studies()] == ["small", "published-max-batch"]
        rows = store.trials("small", documents=True)
        assert [(each.outcome, each.attempt) for each in rows].count(("oom", 0)) == 4
        assert [(each.outcome, each.attempt) for each in rows].count(("done", 1)) == 2
        assert all(each.document for each in rows)
        assert len(store.tasks("small")) == 8
        assert store.claims() == []
        assert len(store.trials("published-max-batch")) == 12
        version = store._rows("PRAGMA user_version")[0][0]
        assert version == schema.SCHEMA


def test_a_migration_happens_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    steps = (*schema.MIGRATIONS, "ALTER TABLE trials ADD COLUMN note TEXT;\nCREATE TABLE trials (x);")
    monkeypatch.setattr(store_module, "MIGRATIONS", steps)
    monkeypatch.setattr(store_module, "SCHEMA", 2)
    with pytest.raises(StokerError, match="already exists"):
        Store(path)
    monkeypatch.setattr(store_module, "MIGRATIONS", (*schema.MIGRATIONS, "ALTER TABLE trials ADD COLUMN note TEXT;"))
    with Store(path) as store:
        store.record(row())
        assert "note" in store._rows("SELECT * FROM trials")[0].keys()  # noqa: SIM118
    monkeypatch.undo()
    with pytest.raises(InputError, match="has schema 2, and this Stoker reads up to 1: update Stoker"):
        Store(path)


# ---------------------------------------------------------------- files that must not be touched


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE mine (x)")


def foreign_with_a_log(path: Path) -> None:
    """Of a program that was killed: its log is beside it and must stay."""
    code = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('CREATE TABLE mine (x)'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    path.with_name(f"{path.name}-shm").unlink()


def newer(path: Path) -> None:
    filled(path).close()
    path.with_name(f"{path.name}-owners").unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")


def no_database(path: Path) -> None:
    path.write_text("seconds,model\n1,a\n" * 300)


def cut(path: Path) -> None:
    filled(path).close()
    path.write_bytes(path.read_bytes()[:5000])


def scrambled(path: Path) -> None:
    filled(path).close()
    data = bytearray(path.read_bytes())
    data[100:4096] = os.urandom(3996)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (foreign, "is a database of another program; choose another file with --db"),
        (foreign_with_a_log, "is a database of another program"),
        (newer, "has schema 99, and this Stoker reads up to 1: update Stoker"),
        (no_database, "is not a database; choose another file"),
        (cut, "is damaged .*; restore a copy, or choose another file"),
        (scrambled, "is damaged .*; restore a copy"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_left_as_it_is(make: object, sentence: str, path: Path) -> None:
    assert callable(make)
    make(path)
    before = digest(path.parent)
    with pytest.raises(StokerError, match=sentence) as found:
        Store(path).check()
    assert str(path) in str(found.value)
    after = digest(path.parent)
    after.pop(f"{path.name}-shm", None)  # SQLite's index of the log, made anew by whoever opens it
    assert after == before


def test_damage_further_in_is_found_before_anything_is_added(path: Path) -> None:
    with filled(path) as store:
        for slot in SLOTS:
            store.record(row(slot, document=os.urandom(20_000)))
    data = bytearray(path.read_bytes())
    data[9 * 4096 : 12 * 4096] = os.urandom(3 * 4096)
    path.write_bytes(data)
    before = digest(path.parent)
    with Store(path) as store, pytest.raises(InputError, match="is damaged"):
        store.check()
    assert digest(path.parent) == before


def test_damaged_samples_are_one_sentence(path: Path) -> None:
    with filled(path) as store:
        store.record(row(document=b"x" * 5000))
        with store._transaction() as db:
            db.execute("UPDATE trials SET document = x'00112233'")
        with pytest.raises(InputError, match=r"is damaged \(a trial cannot be read"):
            store.trials("night", documents=True)


def test_places_where_no_database_can_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file with --db"):
        Store(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        Store(tmp_path / "none" / "stoker.db")
    with pytest.raises(InputError, match=r"there is no .*; run a study first"):
        Store(tmp_path / "stoker.db", create=False)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        Store(tmp_path / "pipe")
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stoker.studies.store.storage", lambda where: msgspec.structs.replace(storage(where), kind="network")
    )
    with pytest.raises(MachineError, match="lies on a network file system"):
        Store(path)
    assert not path.exists()


# ---------------------------------------------------------------- disks that refuse


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_one_sentence() -> None:
    folder = Path(tempfile.mkdtemp(prefix="stoker-test-"))
    try:
        filled(folder / "stoker.db").close()
        (folder / "stoker.db-owners").unlink(missing_ok=True)
        for each in (folder / "stoker.db", folder):
            each.chmod(0o555)
        before = digest(folder)
        with as_somebody_else():
            for name in ("stoker.db", "new.db"):
                with pytest.raises(MachineError, match=f"cannot write .*{name}: the file or its folder is read-only"):
                    Store(folder / name)
        assert digest(folder) == before
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_database_keeps_what_was_recorded(store: Store, path: Path) -> None:
    store.record(row())
    pages = store._rows("PRAGMA page_count")[0][0]
    store._rows(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(MachineError, match="the disk is full; what was recorded before is safe"):
        store.record(row(SLOTS[1], document=os.urandom(100_000)))
    assert [each.key for each in store.trials("night")] == ["key0"]
    store._rows("PRAGMA max_page_count = 1000000")
    store.record(row(SLOTS[1]))
    assert len(store.trials("night")) == 2


def test_a_full_disk_is_one_sentence_and_costs_nothing_that_was_recorded(tiny_disk: Path) -> None:
    path = tiny_disk / "stoker.db"
    recorded: list[int] = []

    def record_on_and_on(store: Store) -> None:
        for repeat in range(1000):
            store.record(row(Slot("key0", repeat), document=os.urandom(20_000)))
            recorded.append(repeat)

    with filled(path) as store, pytest.raises(MachineError, match="the disk is full; what was recorded before is safe"):
        record_on_and_on(store)
    assert len(recorded) > 5
    (tiny_disk / "rest").write_bytes(b"")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (tiny_disk / "rest").write_bytes(bytes(1_000_000))
    with Store(path) as store:
        assert len(store.trials("night")) == len(recorded)


def test_a_file_that_may_not_grow_is_one_sentence(path: Path) -> None:
    """As with a quota: what is written beyond is an error of its own."""
    filled(path).close()
    code = """
import os, resource, sys
from pathlib import Path
from stoker.errors import StokerError
from stoker.studies.store import Store, TrialRow
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
with Store(Path(sys.argv[1])) as store:
    for repeat in range(100):
        try:
            store.record(TrialRow(key="key0", repeat=repeat, machine="machine-1", outcome="done",
                                  document=os.urandom(20_000)))
        except StokerError as error:
            print(repeat, error)
            break
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    recorded, _, sentence = done.stdout.partition(" ")
    assert sentence.startswith(f"cannot use {path}: ")
    with Store(path) as store:
        assert len(store.trials("night")) == int(recorded) > 3


def test_a_transaction_waits_for_another_program(store: Store, path: Path) -> None:
    code = (
        "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(1); db.execute('COMMIT')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        began = time.monotonic()
        store.record(row())
        assert time.monotonic() - began > 0.3
    assert len(store.trials("night")) == 1
