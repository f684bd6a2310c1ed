"""The tables of a study database, and the steps from every older schema to the present one."""

APPLICATION_ID = 0x53746F6B
"""The four letters "Stok" in SQLite's header: so a database of another program is recognised and left alone."""

MIGRATIONS = (
    """
    CREATE TABLE studies (
        name TEXT PRIMARY KEY,
        grid TEXT NOT NULL,          -- the grid as JSON
        created TEXT NOT NULL,
        source TEXT NOT NULL         -- grid, preset or import
    ) STRICT;

    CREATE TABLE tasks (
        key TEXT PRIMARY KEY,        -- Task.key()
        task TEXT NOT NULL           -- the Task as JSON
    ) STRICT;

    CREATE TABLE study_tasks (
        study TEXT NOT NULL REFERENCES studies (name),
        key TEXT NOT NULL REFERENCES tasks (key),
        cell TEXT NOT NULL,          -- the grid's values for this task, as JSON
        asked INTEGER NOT NULL,      -- 0 when the grid no longer asks for it
        PRIMARY KEY (study, key)
    ) STRICT;

    CREATE TABLE machines (
        fingerprint TEXT PRIMARY KEY,
        facts TEXT NOT NULL          -- what the fingerprint was made from, as JSON
    ) STRICT;

    CREATE TABLE trials (
        key TEXT NOT NULL REFERENCES tasks (key),
        repeat INTEGER NOT NULL,
        machine TEXT NOT NULL REFERENCES machines (fingerprint),
        attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        began TEXT,                  -- UTC, ISO 8601
        wall_s REAL,                 -- of the whole trial, start of processes included
        figures TEXT NOT NULL,       -- summary columns, as JSON
        problem TEXT,                -- one sentence where it did not end well
        versions TEXT NOT NULL,      -- of Stoker, torch, Python, as JSON
        document BLOB,               -- the record with its raw samples, JSON compressed by zlib
        PRIMARY KEY (key, repeat, machine, attempt)
    ) STRICT;

    CREATE TABLE claims (
        key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        machine TEXT NOT NULL,
        owner TEXT NOT NULL,         -- an Owner as JSON
        since TEXT NOT NULL,
        PRIMARY KEY (key, repeat, machine)
    ) STRICT;
    """,
)
"""One script a schema number, each run in one transaction. Never edited once released: a change is a new script."""

SCHEMA = len(MIGRATIONS)
