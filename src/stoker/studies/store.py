"""One SQLite file with studies, tasks and trials. Several processes of one host may share it.

A task is claimed in one transaction, and its trial is recorded together with the end of the claim in another. So a
driver that is killed loses only what was in flight: its claim is taken over as soon as somebody looks.
"""

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import msgspec
from msgspec import field

from stoker.errors import InputError, MachineError
from stoker.machine.storage import storage
from stoker.records import Outcome, Record, Task, decode, encode
from stoker.studies.executors import Per
from stoker.studies.owner import Owner, forget, is_alive, new_owner
from stoker.studies.schema import APPLICATION_ID, MIGRATIONS, SCHEMA

_WAIT_S = 60.0
"""How long a transaction waits for another driver's. Each takes milliseconds; a full minute means that one hangs."""
_BUSY_S = 0.01
"""How long to pause before another try to switch the file to WAL: another driver does so in milliseconds."""


class TrialRow(Record, frozen=True):
    """A finished trial as the store keeps it. `figures` are what tables need, `document` the record with samples."""

    key: str
    repeat: int
    machine: str
    outcome: Outcome
    attempt: int = 0
    began: datetime | None = None
    wall_s: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    document: bytes | None = None


class Slot(NamedTuple):
    """One run that a study asks for: a task and the number of the repeat."""

    key: str
    repeat: int


class Cluster(NamedTuple):
    """Where a slot counts as run as soon as any node of a cluster has run it. `per`: what of a node a trial takes;
    `machines`: the fingerprints of the nodes that are known now. A trial of a node says so in its figure `per`, so it
    still counts when its node has left."""

    per: Per
    machines: tuple[str, ...] = ()


Place = str | Cluster
"""Where a slot is to be run: on the machine of this fingerprint, or somewhere in a cluster."""


class Claim(NamedTuple):
    """A claim that somebody holds."""

    key: str
    repeat: int
    machine: str
    owner: Owner
    since: str


class Claimed(NamedTuple):
    """What `Store.claim` found: a slot or none, slots that are finished, and the claims that stand in the way."""

    slot: Slot | None
    finished: tuple[Slot, ...] = ()
    waits_for: tuple[Claim, ...] = ()


class Counts(NamedTuple):
    """What a machine did of a study: slots by their last outcome, those that the grid asks for, and all attempts."""

    outcomes: dict[str, int]
    slots: int
    attempts: int


class Store:
    """An open database. Several threads may use it: their calls take turns."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._lock = threading.RLock()
        _check_place(path, create)
        try:
            if path.exists():
                _check_content(path)
            self._db = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            try:
                self._db.row_factory = sqlite3.Row
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise _refused(path, error) from None

    def close(self) -> None:
        """Close the connection. Claims that it still has count as those of the dead."""
        with self._lock:
            if "_owner" in self.__dict__:
                forget(self._owner, self.path)
            with suppress(sqlite3.Error):
                self._db.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _owner(self) -> Owner:
        """Whose claims this connection makes; made with the first of them."""
        return new_owner(self.path)

    def check(self) -> None:
        """Read the whole file. Raises InputError if it is damaged, before anything is added to it."""
        found = self._rows("PRAGMA quick_check(1)")[0][0]
        if found != "ok":
            raise _damaged(self.path, str(found))

    # ------------------------------------------------------------ studies and tasks

    def add_study(self, name: str, grid: Any, source: str, tasks: Mapping[str, tuple[Task, Mapping[str, Any]]]) -> None:
        """Store a study, or its changed grid. Tasks that are no longer asked for stay, marked as such."""
        now = _now()
        with self._transaction() as db:
            db.execute(
                "INSERT INTO studies (name, grid, created, source) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET grid = excluded.grid",
                (name, encode(grid).decode(), now, source),
            )
            db.execute("UPDATE study_tasks SET asked = 0 WHERE study = ?", (name,))
            db.executemany(
                "INSERT INTO tasks (key, task) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
                [(key, encode(task).decode()) for key, (task, _) in tasks.items()],
            )
            db.executemany(
                "INSERT INTO study_tasks (study, key, cell, asked) VALUES (?, ?, ?, 1) "
                "ON CONFLICT (study, key) DO UPDATE SET asked = 1, cell = excluded.cell",
                [(name, key, json.dumps(dict(cell))) for key, (_, cell) in tasks.items()],
            )

    def studies(self) -> list[dict[str, Any]]:
        """Every study: its name, grid, source and when it was created."""
        return [
            dict(row) for row in self._rows("SELECT name, grid, created, source FROM studies ORDER BY created, name")
        ]

    def study(self, name: str) -> dict[str, Any] | None:
        rows = self._rows("SELECT name, grid, created, source FROM studies WHERE name = ?", (name,))
        return dict(rows[0]) if rows else None

    def tasks(self, study: str) -> dict[str, tuple[Task, dict[str, Any], bool]]:
        """Every task of a study by key: the task, its cell, and whether the grid still asks for it."""
        rows = self._rows(
            "SELECT key, task, cell, asked FROM study_tasks JOIN tasks USING (key) WHERE study = ?", (study,)
        )
        return {
            row["key"]: (decode(row["task"].encode(), Task), json.loads(row["cell"]), bool(row["asked"]))
            for row in rows
        }

    def cells(self, study: str) -> dict[str, tuple[dict[str, Any], bool]]:
        """The values of each of a study's tasks by key, and whether the grid still asks for it."""
        rows = self._rows("SELECT key, cell, asked FROM study_tasks WHERE study = ? ORDER BY rowid", (study,))
        return {row["key"]: (json.loads(row["cell"]), bool(row["asked"])) for row in rows}

    def keys(self, study: str) -> dict[str, bool]:
        """The keys of a study's tasks, and whether the grid still asks for each: quicker than `tasks`."""
        return {
            row["key"]: bool(row["asked"])
            for row in self._rows("SELECT key, asked FROM study_tasks WHERE study = ?", (study,))
        }

    # ------------------------------------------------------------ machines

    def add_machine(self, fingerprint: str, facts: Mapping[str, Any]) -> None:
        with self._transaction() as db:
            db.execute(
                "INSERT INTO machines (fingerprint, facts) VALUES (?, ?) ON CONFLICT (fingerprint) DO NOTHING",
                (fingerprint, json.dumps(dict(facts))),
            )

    def machines(self) -> dict[str, dict[str, Any]]:
        return {
            row["fingerprint"]: json.loads(row["facts"])
            for row in self._rows("SELECT fingerprint, facts FROM machines")
        }

    # ------------------------------------------------------------ claims and trials

    def claim(self, slots: Iterable[Slot], place: Place, *, jobs: int, retries: Mapping[Slot, int]) -> Claimed:
        """Claim the first of `slots` that has no trial at this place and that nobody else runs there.

        At most `jobs` trials run on this host over all drivers of the file; with so many, nothing is claimed. What runs
        in a cluster does not count, and is not limited: its driver knows how many fit. A slot in
        `retries` counts as open while its last attempt has the number given there: two drivers that were asked to retry
        it do so once. Claims of dead owners are removed first.
        """
        with self._transaction() as db:
            name, claims = _claim_name(place), self._live_claims(db)
            here = [each for each in claims if not each.machine.startswith(_CLUSTER)]
            if isinstance(place, str) and len(here) >= jobs:
                return Claimed(None, waits_for=tuple(here))
            claimed = {Slot(each.key, each.repeat): each for each in claims if each.machine == name}
            finished, waits_for = [], []
            for slot in slots:
                if slot in claimed:
                    waits_for.append(claimed[slot])
                    continue
                last = _last_attempt(db, slot, place)
                if last is not None and retries.get(slot) != last:
                    finished.append(slot)
                    continue
                db.execute(
                    "INSERT INTO claims (key, repeat, machine, owner, since) VALUES (?, ?, ?, ?, ?)",
                    (*slot, name, encode(self._owner).decode(), _now()),
                )
                return Claimed(slot, tuple(finished))
            return Claimed(None, tuple(finished), tuple(waits_for))

    def record(self, row: TrialRow, place: Place | None = None) -> int:
        """Store a finished trial and end this process' claim on it, both or neither. The number of the attempt. `place`
        is where it was claimed, by default its machine.

        A slot that another driver finished meanwhile (after this one was taken for dead) gets a further attempt.
        """
        with self._transaction() as db:
            attempt = _insert(db, row)
            db.execute(
                "DELETE FROM claims WHERE key = ? AND repeat = ? AND machine = ? AND owner = ?",
                (row.key, row.repeat, _claim_name(place or row.machine), encode(self._owner).decode()),
            )
            return attempt

    def record_all(self, rows: Iterable[TrialRow]) -> None:
        """Store many trials in one transaction, for imports."""
        with self._transaction() as db:
            for row in rows:
                _insert(db, row)

    def release(self, slot: Slot, place: Place) -> None:
        """Give a claim back without a trial."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM claims WHERE key = ? AND repeat = ? AND machine = ? AND owner = ?",
                (*slot, _claim_name(place), encode(self._owner).decode()),
            )

    def claims(self) -> list[Claim]:
        """The claims of owners that are alive. Reads only."""
        return [claim for claim in self._claims(self._rows("SELECT * FROM claims")) if is_alive(claim.owner, self.path)]

    def trials(
        self, study: str | None = None, *, documents: bool = False, keys: Sequence[str] | None = None
    ) -> list[TrialRow]:
        """All trials of a study, or of the whole file, every attempt, oldest first. `keys` chooses tasks."""
        columns = "key, repeat, machine, attempt, outcome, began, wall_s, figures, problem, versions"
        columns += ", document" if documents else ", NULL AS document"
        where = "" if study is None else "WHERE key IN (SELECT key FROM study_tasks WHERE study = ?)"
        values: tuple[str, ...] = () if study is None else (study,)
        if keys is not None:
            where += f"{' AND' if where else 'WHERE'} key IN ({', '.join('?' * len(keys))})"
            values += tuple(keys)
        rows = self._rows(f"SELECT {columns} FROM trials {where} ORDER BY began, key, repeat, machine, attempt", values)
        return self._made(rows)

    def document(self, key: str, repeat: int, machine: str, attempt: int) -> bytes | None:
        """The record of one trial with its raw samples; None where it has none."""
        rows = self._rows(
            "SELECT * FROM trials WHERE key = ? AND repeat = ? AND machine = ? AND attempt = ?",
            (key, repeat, machine, attempt),
        )
        return self._made(rows)[0].document if rows else None

    def _made(self, rows: Iterable[sqlite3.Row]) -> list[TrialRow]:
        try:
            return [_trial_of(row) for row in rows]
        except (zlib.error, ValueError) as error:
            raise _damaged(self.path, f"a trial cannot be read: {error}") from None

    def done(self, study: str) -> set[str]:
        """The keys of the tasks that have a trial which is done, on whatever machine."""
        query = (
            "SELECT DISTINCT key FROM trials WHERE outcome = 'done' AND key IN "
            "(SELECT key FROM study_tasks WHERE study = ?)"
        )
        return {row["key"] for row in self._rows(query, (study,))}

    def count(self, study: str) -> int:
        """How many trials a study has, all attempts counted."""
        query = "SELECT COUNT(*) FROM trials WHERE key IN (SELECT key FROM study_tasks WHERE study = ?)"
        return int(self._rows(query, (study,))[0][0])

    def counts(self, study: str, repeats: int) -> dict[str, Counts]:
        """What became of the tasks that a study asks for, by machine."""
        rows = self._rows(
            "SELECT machine, outcome, COUNT(*) AS slots, SUM(attempts) AS attempts, SUM(repeat < ?) AS asked FROM "
            "(SELECT machine, repeat, outcome, MAX(attempt), COUNT(*) AS attempts FROM trials WHERE key IN "
            "(SELECT key FROM study_tasks WHERE study = ? AND asked = 1) GROUP BY machine, key, repeat) "
            "GROUP BY machine, outcome ORDER BY machine, slots DESC, outcome",
            (repeats, study),
        )
        found: dict[str, Counts] = {}
        for row in rows:
            before = found.get(row["machine"], Counts({}, 0, 0))
            outcomes = {**before.outcomes, row["outcome"]: row["slots"]}
            found[row["machine"]] = Counts(outcomes, before.slots + row["asked"], before.attempts + row["attempts"])
        return found

    def clusters(self, study: str) -> dict[str, Per]:
        """The machines that are nodes of a cluster, by fingerprint, and what of a node a trial took."""
        rows = self._rows(
            "SELECT DISTINCT machine, json_extract(figures, '$.per') AS per FROM trials WHERE per IS NOT NULL "
            "AND key IN (SELECT key FROM study_tasks WHERE study = ? AND asked = 1)",
            (study,),
        )
        return {row["machine"]: row["per"] for row in rows}

    def last_attempts(self, place: Place) -> dict[Slot, tuple[str, int]]:
        """The outcome and number of the last attempt at every slot that was run at this place."""
        where, values = _at(place)
        rows = self._rows(
            f"SELECT key, repeat, outcome, MAX(rowid), COUNT(*) - 1 AS attempt FROM trials WHERE {where} "
            "GROUP BY key, repeat",
            values,
        )
        return {Slot(row["key"], row["repeat"]): (row["outcome"], row["attempt"]) for row in rows}

    def last_attempt(self, slot: Slot, place: Place) -> int | None:
        """The number of the last attempt at a slot; None where there was none."""
        with self._reading() as db:
            return _last_attempt(db, slot, place)

    def wall_seconds(self, place: Place) -> dict[str, list[float]]:
        """Seconds that the trials of each task took at this place, processes included."""
        found: dict[str, list[float]] = {}
        where, values = _at(place)
        for row in self._rows(f"SELECT key, wall_s FROM trials WHERE {where} AND wall_s IS NOT NULL", values):
            found.setdefault(row["key"], []).append(row["wall_s"])
        return found

    @staticmethod
    def _claims(rows: Iterable[sqlite3.Row]) -> list[Claim]:
        owners: dict[str, Owner] = {}  # a driver of a cluster has a claim for each node
        for row in (listed := list(rows)):
            if row["owner"] not in owners:
                owners[row["owner"]] = decode(row["owner"].encode(), Owner)
        return [Claim(row["key"], row["repeat"], row["machine"], owners[row["owner"]], row["since"]) for row in listed]

    def _live_claims(self, db: sqlite3.Connection) -> list[Claim]:
        """Claims of living owners; the others are removed."""
        alive: list[Claim] = []
        lives: dict[Owner, bool] = {}
        for claim in self._claims(db.execute("SELECT * FROM claims").fetchall()):
            if claim.owner not in lives:
                lives[claim.owner] = is_alive(claim.owner, self.path)
            if lives[claim.owner]:
                alive.append(claim)
            else:
                db.execute(
                    "DELETE FROM claims WHERE key = ? AND repeat = ? AND machine = ?",
                    (claim.key, claim.repeat, claim.machine),
                )
        return alive

    # ------------------------------------------------------------ SQLite

    def _prepare(self) -> None:
        """Switch to WAL and bring the schema up to date."""
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        mode = self._db.execute("PRAGMA journal_mode").fetchone()[0]
        if mode != "wal":
            mode = self._switch_to_wal()
        if mode != "wal":
            raise MachineError(f"SQLite's write-ahead log does not work at {self.path}; choose a local disk with --db")
        if self._db.execute("PRAGMA user_version").fetchone()[0] < SCHEMA:
            self._migrate()

    def _switch_to_wal(self) -> str:
        """SQLite does not wait for other processes here, so this does."""
        deadline = monotonic() + _WAIT_S
        while True:
            try:
                return str(self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                    raise
            sleep(_BUSY_S)

    def _migrate(self) -> None:
        with self._transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]  # another driver may have been quicker
            for number in range(version, SCHEMA):
                for statement in _statements(MIGRATIONS[number]):
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of it or nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise _refused(self.path, error) from None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise _refused(self.path, error) from None

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        with self._reading() as db:
            return db.execute(query, values).fetchall()


def _insert(db: sqlite3.Connection, row: TrialRow) -> int:
    attempt = db.execute(
        "SELECT COALESCE(MAX(attempt) + 1, 0) FROM trials WHERE key = ? AND repeat = ? AND machine = ?",
        (row.key, row.repeat, row.machine),
    ).fetchone()[0]
    db.execute(
        "INSERT INTO trials "
        "(key, repeat, machine, attempt, outcome, began, wall_s, figures, problem, versions, document) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.key,
            row.repeat,
            row.machine,
            attempt,
            row.outcome,
            row.began.astimezone(UTC).isoformat() if row.began else None,
            row.wall_s,
            encode(row.figures).decode(),
            row.problem,
            json.dumps(row.versions),
            zlib.compress(row.document) if row.document is not None else None,
        ),
    )
    return int(attempt)


def _trial_of(row: sqlite3.Row) -> TrialRow:
    return TrialRow(
        key=row["key"],
        repeat=row["repeat"],
        machine=row["machine"],
        attempt=row["attempt"],
        outcome=row["outcome"],
        began=datetime.fromisoformat(row["began"]) if row["began"] else None,
        wall_s=row["wall_s"],
        figures=msgspec.json.decode(row["figures"]),
        problem=row["problem"],
        versions=json.loads(row["versions"]),
        document=zlib.decompress(row["document"]) if row["document"] is not None else None,
    )


def _last_attempt(db: sqlite3.Connection, slot: Slot, place: Place) -> int | None:
    where, values = _at(place)
    query = f"SELECT COUNT(*) AS attempts FROM trials WHERE key = ? AND repeat = ? AND {where}"
    attempts = int(db.execute(query, (*slot, *values)).fetchone()["attempts"])
    return attempts - 1 if attempts else None


_CLUSTER = "ray per "
"""How the machine of a claim begins that is for any node of a cluster: no fingerprint does."""


def _claim_name(place: Place) -> str:
    return place if isinstance(place, str) else f"{_CLUSTER}{place.per}"


def _at(place: Place) -> tuple[str, tuple[str, ...]]:
    """A condition for the trials that count at a place."""
    if isinstance(place, str):
        return "machine = ?", (place,)
    known = ", ".join("?" * len(place.machines))
    return f"(json_extract(figures, '$.per') = ? OR machine IN ({known}))", (place.per, *place.machines)


def _statements(script: str) -> list[str]:
    """The statements of a script. `executescript` would commit the transaction that they must share."""
    found, buffer = [], ""
    for line in script.splitlines():
        buffer += line.split("--")[0] + "\n"
        if sqlite3.complete_statement(buffer):
            found.append(buffer.strip())
            buffer = ""
    return found


def _check_place(path: Path, create: bool) -> None:
    """Refuse places where SQLite must not work."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with --db")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file; choose another with --db")
    if not path.exists():
        if not create:
            raise InputError(f"there is no {path}; run a study first, or name its file with --db")
        if not path.parent.is_dir():
            raise InputError(f"cannot create {path}: {path.parent} is not a folder")
    if storage(path.absolute().parent).kind == "network":
        raise MachineError(
            f"{path} lies on a network file system, where several processes cannot share a database safely; "
            "choose a local disk with --db"
        )


def _check_content(path: Path) -> None:
    """Refuse a file that is not ours, or too new, before a connection that could change it is opened.

    SQLite itself looks, because a plain `open` and `close` of the file would give up the locks of other connections of
    this process. A file without a log beside it is read as it is; otherwise its log counts too.
    """
    has_log = path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"
    with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S)) as db:
        application, version = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        is_empty = not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and not is_empty:
        raise InputError(f"{path} is a database of another program; choose another file with --db")
    if application == APPLICATION_ID and version > SCHEMA:
        raise InputError(
            f"{path} has schema {version}, and this Stoker reads up to {SCHEMA}: update Stoker, or choose another "
            "file with --db"
        )


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 where the error did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _refused(path: Path, error: sqlite3.Error) -> InputError | MachineError:
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return MachineError(f"cannot write {path}: the disk is full; what was recorded before is safe")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return MachineError(f"cannot write {path}: the file or its folder is read-only")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MachineError(f"{path} has been locked by another program for {_WAIT_S:g} s; end that, then go on")
    if code == sqlite3.SQLITE_NOTADB:
        return InputError(f"{path} is not a database; choose another file with --db")
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, str(error))
    return MachineError(f"cannot use {path}: {error}")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged ({what}); restore a copy, or choose another file with --db")


def _now() -> str:
    return datetime.now(UTC).isoformat()
