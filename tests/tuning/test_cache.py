"""The tuning cache: kept rows, several processes and threads, damage, locks, its bound."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from jaxmono._errors import JaxmonoWarning
from jaxmono.tuning.cache import NAME, TuningCache
from jaxmono.tuning.choice import Row, choose

ROWS = (Row("a", 0, 5.0, 0.1), Row("b", 1, None, 0.0, "it spills"), Row("c", 2, 4.0, 0.05))


def test_rows_come_back_and_are_replaced(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path / "deep" / NAME)
    assert cache.is_empty and cache.rows("p") == () and cache.region("k") is None
    assert not (tmp_path / "deep").exists(), "reading makes no file"
    cache.put("p", {"shape": "1x2x3"}, ROWS, complete=False)
    assert cache.rows("p") == ROWS and not cache.complete("p") and not cache.is_empty
    cache.put("p", {"shape": "1x2x3"}, [Row("a", 0, 6.0, 0.1)], complete=True)
    assert cache.rows("p") == (Row("a", 0, 6.0, 0.1), *ROWS[1:]) and cache.complete("p")
    assert cache.rows("q") == ()
    cache.put_region("k", {"sig": "p"})
    again = TuningCache(tmp_path / "deep" / NAME)
    assert again.rows("p")[0].us == 6.0 and again.region("k") == {"sig": "p"}


def test_in_memory() -> None:
    cache = TuningCache(None)
    assert cache.is_empty
    cache.put("p", {}, ROWS, complete=True)
    assert cache.rows("p") == ROWS and cache.complete("p")


def test_a_row_is_readable_by_people(tmp_path: Path) -> None:
    TuningCache(tmp_path / NAME).put("p", {"shape": "1x2x3", "device": "H"}, ROWS, complete=True)
    db = sqlite3.connect(tmp_path / NAME)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    (fields,) = db.execute("SELECT fields FROM problems").fetchone()
    assert json.loads(fields) == {"shape": "1x2x3", "device": "H"}
    assert db.execute("SELECT count(*) FROM candidates WHERE measured > 0").fetchone() == (3,)
    db.close()


_WRITER = """
import sys
from pathlib import Path
from jaxmono.tuning.cache import TuningCache
from jaxmono.tuning.choice import Row
cache = TuningCache(Path(sys.argv[1]))
for i in range(60):
    cache.put(f"{sys.argv[2]}{i % 30}", {}, [Row("a", 0, float(i + 1)), Row("b", 1, 2.0)],
              complete=True)
    cache.put_region(sys.argv[2], {"s": str(i)})
    assert len(cache.rows("both")) in (0, 2)
    cache.put("both", {}, [Row("a", 0, 1.0), Row("b", 1, 2.0)], complete=True)
"""


def test_two_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / NAME
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", _WRITER, str(path), name],
                                stderr=subprocess.PIPE, text=True) for name in ("x", "y")]
    cache = TuningCache(path)
    threads = [threading.Thread(target=lambda n=n: [cache.put(f"t{n}-{i}", {}, ROWS, complete=True)
                                                   for i in range(20)]) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for w in writers:
        assert w.communicate()[1] == "" and w.returncode == 0
    for name in "xy":
        assert all(len(cache.rows(f"{name}{i}")) == 2 for i in range(30))
        assert cache.region(name) == {"s": "59"}
    assert all(cache.rows(f"t{n}-{i}") == ROWS for n in range(2) for i in range(20))


def test_a_new_file_is_made_by_many_at_once(tmp_path: Path) -> None:
    """SQLite does not wait while two connections switch a new file to WAL."""
    for n in range(20):
        path = tmp_path / str(n) / NAME
        start = threading.Barrier(4)

        def make(name: str, path: Path = path, start: threading.Barrier = start) -> None:
            start.wait()
            TuningCache(path).put(name, {}, ROWS, complete=True)

        threads = [threading.Thread(target=make, args=(f"p{i}",)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all(TuningCache(path).rows(f"p{i}") == ROWS for i in range(4))


@pytest.mark.parametrize("damage", ["text", "truncated", "newer", "directory", "content"])
def test_a_damaged_file_is_one_warning_and_the_process_goes_on(tmp_path: Path,
                                                                 damage: str) -> None:
    path = tmp_path / NAME
    TuningCache(path).put("p", {}, ROWS, complete=True)
    if damage == "directory":
        for file in tmp_path.iterdir():
            file.unlink()
        path.mkdir()
    elif damage == "text":
        path.write_bytes(b"no database\n" * 1000)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        db = sqlite3.connect(path)
        with db:
            db.execute("PRAGMA user_version = 9" if damage == "newer"
                       else "UPDATE candidates SET us = 'fast'")
        db.close()
    cache = TuningCache(path)
    with pytest.warns(JaxmonoWarning, match=r"tuning\.sqlite3 cannot be used") as seen:
        assert cache.rows("p") == () and cache.is_empty
        cache.put("q", {}, ROWS, complete=True)
        assert cache.rows("q") == ROWS, "kept in this process's memory"
    assert len(seen) == 1


def test_a_locked_file_is_one_warning(tmp_path: Path) -> None:
    path = tmp_path / NAME
    TuningCache(path).put("p", {}, ROWS, complete=True)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        cache = TuningCache(path, busy_seconds=0.05)
        assert cache.rows("p") == ROWS, "readers do not wait for a writer"
        with pytest.warns(JaxmonoWarning, match="locked") as seen:
            cache.put("q", {}, ROWS, complete=True)
            assert cache.rows("q") == ROWS
        assert len(seen) == 1
    finally:
        holder.close()


def test_a_read_only_file_serves(tmp_path: Path) -> None:
    path = tmp_path / NAME
    TuningCache(path).put("p", {}, ROWS, complete=True)
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE problems SET used = 1.0")
    db.close()
    path.chmod(0o444)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TuningCache(path).rows("p") == ROWS


def test_the_oldest_go_first(tmp_path: Path) -> None:
    path = tmp_path / NAME
    cache = TuningCache(path, max_problems=3)
    for i in range(3):
        cache.put(f"p{i}", {}, ROWS, complete=True)
        cache.put_region(f"k{i}", {})
    db = sqlite3.connect(path)
    with db:  # p1 and k1 were used longest ago
        db.execute("UPDATE problems SET used = CASE key WHEN 'p1' THEN 1.0 ELSE 2.0 END")
        db.execute("UPDATE regions SET used = CASE key WHEN 'k1' THEN 1.0 ELSE 2.0 END")
    db.close()
    cache.rows("p0")  # a use counts
    cache.put("p3", {}, ROWS, complete=True)
    cache.put_region("k3", {})
    assert [cache.complete(f"p{i}") for i in range(4)] == [True, False, True, True]
    assert [cache.region(f"k{i}") is not None for i in range(4)] == [True, False, True, True]
    cache.put("p4", {}, ROWS, complete=True)
    assert cache.rows("p2") == () and cache.rows("p0") == ROWS
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM candidates").fetchone() == (9,), "rows go with them"
    db.close()


# ---- the choice --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "wanted"), [
    ([], None),
    ([Row("a", 0, None, 0.0, "spills")], None),
    ([Row("a", 0, 5.0), Row("b", 1, 4.0)], "b"),
    ([Row("a", 0, 5.0), Row("b", 1, 4.95)], "a"),  # within two per cent
    ([Row("a", 0, 5.0, 0.4), Row("b", 1, 4.0, 0.4)], "a"),  # within the noise
    ([Row("a", 0, 5.0, 0.1), Row("b", 1, 4.0, 0.1)], "b"),
    ([Row("a", 0, None, 0.0, "hangs"), Row("b", 1, 4.0), Row("c", 2, 4.0)], "b"),
    ([Row("b", 1, 4.0), Row("c", 2, 3.9)], "c"),
    ([Row("a", 0, 4.0), Row("b", 1, None, 0.0, "crash"), Row("c", 2, 9.0)], "a"),
])
def test_choice(rows: list[Row], wanted: str | None) -> None:
    found = choose(rows)
    assert (found.schedule if found else None) == wanted
    assert choose(reversed(rows)) == found
