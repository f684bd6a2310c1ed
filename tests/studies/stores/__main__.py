"""Writes the database of the present schema, once for each: python -m tests.studies.stores"""

import sqlite3
from contextlib import closing
from pathlib import Path

from stoker.records import encode
from stoker.studies.owner import Owner
from stoker.studies.schema import SCHEMA
from stoker.studies.transfer import import_published
from tests.studies.quick import QuickExecutor, small_study


def main() -> None:
    folder = Path(__file__).parent
    final = folder / f"schema-{SCHEMA}.db"
    if final.exists():
        raise SystemExit(f"{final} is there already; it must stay as it was")
    study = small_study(folder)
    study.run(executor=QuickExecutor(outcomes={8: "oom"}))
    study.run(executor=QuickExecutor(), retry=["oom"], only=["workload=resnet18"])
    import_published("max-batch", db=study.store_path)
    owner = Owner(boot="a boot long ago", namespace="pid:[1]", pid=1, started=1.0, lock=1)
    with closing(sqlite3.connect(study.store_path)) as db, db:
        key, machine = db.execute("SELECT key, machine FROM trials").fetchone()
        claim = (key, 7, machine, encode(owner).decode(), "2026-11-18T00:00:00+00:00")
        db.execute("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", claim)
    study.store_path.rename(final)
    (folder / "stoker.db-owners").unlink()


if __name__ == "__main__":
    main()
