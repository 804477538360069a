"""The tuning cache: what was measured, in one SQLite database that processes share.

    problems    key, its readable fields, whether all candidates were measured, last use
    candidates  problem, schedule, rank, microseconds and their error, or the reason of a failure
    regions     key of a kernel -> the problems in it, so that a known kernel is not planned again
    functions   key of a function -> microseconds by its kernels, and by XLA's program of it; made
                with its first row

A database that cannot be used costs one warning line, and this process goes on with a database in
its own memory.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from jaxmono._errors import warn
from jaxmono.tuning.choice import Row
from jaxmono.tuning.report import Beside

NAME = "tuning.sqlite3"
_VERSION = 1
_BUSY_SECONDS = 5.0
MAX_PROBLEMS = 4096
"""Above it the problems that were used longest ago go, with their rows: about 20 MB."""
_USED_SECONDS = 3600.0
"""How exact the time of the last use is; a lookup that writes nothing needs no lock."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS problems(
  key TEXT PRIMARY KEY, fields TEXT NOT NULL, complete INTEGER NOT NULL, used REAL NOT NULL);
CREATE TABLE IF NOT EXISTS candidates(
  problem TEXT NOT NULL, schedule TEXT NOT NULL, rank INTEGER NOT NULL, us REAL, error REAL,
  reason TEXT NOT NULL, measured REAL NOT NULL, PRIMARY KEY(problem, schedule)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS regions(
  key TEXT PRIMARY KEY, problems TEXT NOT NULL, used REAL NOT NULL);
CREATE INDEX IF NOT EXISTS problems_used ON problems(used);
CREATE INDEX IF NOT EXISTS regions_used ON regions(used);
"""

_FUNCTIONS = """CREATE TABLE IF NOT EXISTS functions(
  key TEXT PRIMARY KEY, kernels_us REAL NOT NULL, xla_us REAL NOT NULL, used REAL NOT NULL)"""

T = TypeVar("T")


class TuningCache:
    """The database at a path, or one in memory; safe for several threads and processes."""

    def __init__(self, path: Path | None, *, max_problems: int = MAX_PROBLEMS,
                 busy_seconds: float = _BUSY_SECONDS) -> None:
        """``path``: of the file, made when first written to; None: in memory."""
        self._path = path
        self._max = max_problems
        self._busy = busy_seconds
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def rows(self, problem: str) -> tuple[Row, ...]:
        """What was measured of a problem, by rank."""

        def read(db: sqlite3.Connection) -> tuple[Row, ...]:
            found = db.execute("SELECT schedule, rank, us, error, reason FROM candidates "
                               "WHERE problem = ? ORDER BY rank", (problem,)).fetchall()
            self._touch(db, "problems", problem)
            return tuple(Row(str(s), int(rank), None if us is None else float(us),
                             float(error or 0.0), str(reason))
                         for s, rank, us, error, reason in found)

        return self._run(read, ())

    def complete(self, problem: str) -> bool:
        """Whether every candidate of a problem has a row."""

        def read(db: sqlite3.Connection) -> bool:
            found = db.execute("SELECT complete FROM problems WHERE key = ?", (problem,)).fetchone()
            return found is not None and bool(found[0])

        return self._run(read, False)

    def put(self, problem: str, fields: Mapping[str, Any], rows: Iterable[Row], *,
            complete: bool) -> None:
        """Keeps the rows of a problem (replacing those of the same schedules)."""
        now = time.time()
        values = [(problem, r.schedule, r.rank, r.us, r.error, r.reason, now) for r in rows]

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO problems VALUES(?, ?, ?, ?) ON CONFLICT(key) DO UPDATE SET "
                       "complete = max(complete, excluded.complete), used = excluded.used",
                       (problem, json.dumps(dict(fields), sort_keys=True), int(complete), now))
            db.executemany("INSERT OR REPLACE INTO candidates VALUES(?, ?, ?, ?, ?, ?, ?)", values)
            self._evict(db)

        self._run(write, None, writes=True)

    def region(self, key: str) -> dict[str, str] | None:
        """The problems of a kernel by the keys of their Sigs, or None if it is not known."""

        def read(db: sqlite3.Connection) -> dict[str, str] | None:
            found = db.execute("SELECT problems FROM regions WHERE key = ?", (key,)).fetchone()
            if found is None:
                return None
            self._touch(db, "regions", key)
            return {str(k): str(v) for k, v in json.loads(found[0]).items()}

        return self._run(read, None)

    def put_region(self, key: str, problems: Mapping[str, str]) -> None:
        """Keeps which problems a kernel has."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO regions VALUES(?, ?, ?)",
                       (key, json.dumps(dict(problems), sort_keys=True), time.time()))
            self._evict(db)

        self._run(write, None, writes=True)

    def function(self, key: str) -> Beside | None:
        """What a function takes by its kernels and by XLA's program, or None if nobody knows."""

        def read(db: sqlite3.Connection) -> Beside | None:
            found = db.execute("SELECT kernels_us, xla_us FROM functions WHERE key = ?",
                               (key,)).fetchone() if _has_functions(db) else None
            if found is None:
                return None
            self._touch(db, "functions", key)
            return Beside(float(found[0]), float(found[1]))

        return self._run(read, None)

    def put_function(self, key: str, found: Beside) -> None:
        """Keeps that."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(_FUNCTIONS)
            db.execute("INSERT OR REPLACE INTO functions VALUES(?, ?, ?, ?)",
                       (key, found.kernels_us, found.xla_us, time.time()))
            self._evict(db)

        self._run(write, None, writes=True)

    @property
    def has_functions(self) -> bool:
        """Some function was timed."""
        return self._run(_has_functions, False)

    @property
    def is_empty(self) -> bool:
        """Nothing was ever measured, so there is nothing to look up."""
        return not self._run(
            lambda db: db.execute("SELECT 1 FROM candidates LIMIT 1").fetchone() is not None,
            False)

    # ---- connections ---------------------------------------------------------------------------

    def _run(self, work: Callable[[sqlite3.Connection], T], missing: T, *,
             writes: bool = False) -> T:
        """``work`` in one transaction; ``missing`` where there is no database to read."""
        with self._lock:
            if self._memory is None and self._path is not None:
                if not writes and not self._path.exists():
                    return missing
                try:
                    if writes:
                        self._path.parent.mkdir(parents=True, exist_ok=True)
                    with closing(self._open(str(self._path))) as db, db:
                        return work(db)
                except (sqlite3.Error, OSError, ValueError) as error:
                    warn(f"jaxmono: the tuning cache {self._path} cannot be used ({error}); this "
                         f"process goes on without it, with the schedules that need no "
                         f"measurement. Remove the file if it is damaged", stacklevel=4)
            if self._memory is None:
                self._memory = self._open(":memory:")
            with self._memory as db:
                return work(db)

    def _open(self, where: str) -> sqlite3.Connection:
        db = sqlite3.connect(where, timeout=self._busy, check_same_thread=False)
        give_up = time.monotonic() + self._busy
        try:
            while True:
                try:
                    self._set_up(db, wal=where != ":memory:")
                    return db
                except sqlite3.OperationalError:
                    # SQLite does not wait when two processes switch a new file to WAL at once.
                    if db.in_transaction:
                        db.rollback()
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(0.01)
        except BaseException:
            db.close()
            raise

    def _set_up(self, db: sqlite3.Connection, *, wal: bool) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it is of format {version}, this jaxmono writes "
                                        f"{_VERSION}")
        if version == 0:
            if wal:
                db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {_VERSION};COMMIT;")
        db.execute("PRAGMA synchronous = NORMAL")

    def _touch(self, db: sqlite3.Connection, table: str, key: str) -> None:
        now = time.time()
        found = db.execute(f"SELECT used FROM {table} WHERE key = ?", (key,)).fetchone()
        if found is None or found[0] > now - _USED_SECONDS:
            return
        with suppress(sqlite3.OperationalError):  # read-only, or busy: it is only for eviction
            db.execute(f"UPDATE {table} SET used = ? WHERE key = ?", (now, key))

    def _evict(self, db: sqlite3.Connection) -> None:
        for table in ("problems", "regions", *(["functions"] if _has_functions(db) else [])):
            db.execute(f"DELETE FROM {table} WHERE key IN (SELECT key FROM {table} "
                       f"ORDER BY used DESC LIMIT -1 OFFSET ?)", (self._max,))
        db.execute("DELETE FROM candidates WHERE problem NOT IN (SELECT key FROM problems)")


def _has_functions(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'functions'"
                      ).fetchone() is not None
