"""Responses that may be continued: a bounded sqlite table, the oldest ones go first."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from ingle.errors import ConfigError

_log = logging.getLogger(__name__)


class ResponseStore:
    """Thread-safe. A response is seen by the client that made it alone. Without a file it lives in memory.

    Raises:
        ConfigError: the file cannot be opened, or is something else.
    """

    def __init__(self, file: Path | None, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(file or ":memory:", check_same_thread=False, isolation_level=None)
            if file is not None:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS responses (id TEXT PRIMARY KEY, client BLOB NOT NULL, "
                "created REAL NOT NULL, response BLOB NOT NULL, items BLOB NOT NULL)"
            )
            self._db.execute("CREATE INDEX IF NOT EXISTS age ON responses (created)")
            self._nbytes = self._held()
        except sqlite3.Error as error:
            raise ConfigError(f"cannot keep responses in {file}: {error}") from None

    def put(self, client: bytes, response: dict[str, Any], items: list[Any]) -> None:
        """`items`: the whole conversation, its answer included. What is larger than the store is not kept."""
        body, history = msgspec.json.encode(response), msgspec.json.encode(items)
        size = len(body) + len(history)
        if size > self._max_bytes:
            return
        try:
            with self._lock:
                while self._nbytes + size > self._max_bytes and self._drop_oldest():
                    pass
                self._db.execute(
                    "INSERT INTO responses VALUES (?, ?, ?, ?, ?)",
                    (response["id"], client, time.time(), body, history),
                )
                self._nbytes += size
        except sqlite3.Error as error:  # a full disk: the answer itself is not lost by it
            _log.warning("a response could not be kept: %s", error)

    def response(self, client: bytes, id: str) -> Any | None:
        """As it was answered; None: not here, or of another client."""
        return self._one("response", client, id)

    def items(self, client: bytes, id: str) -> list[Any] | None:
        """The conversation up to this response's last word."""
        return self._one("items", client, id)

    def delete(self, client: bytes, id: str) -> bool:
        """Whether it was there."""
        with self._lock:
            gone = self._db.execute(
                "DELETE FROM responses WHERE id = ? AND client = ? "
                "RETURNING length(response) + length(items)",
                (id, client),
            ).fetchall()
            self._nbytes -= sum(size for (size,) in gone)
            return bool(gone)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _one(self, column: str, client: bytes, id: str) -> Any | None:
        with self._lock:
            row = self._db.execute(
                f"SELECT {column} FROM responses WHERE id = ? AND client = ?",  # noqa: S608 # ours
                (id, client),
            ).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    def _drop_oldest(self) -> bool:
        gone = self._db.execute(
            "DELETE FROM responses WHERE id = (SELECT id FROM responses ORDER BY created LIMIT 1) "
            "RETURNING length(response) + length(items)"
        ).fetchall()
        self._nbytes -= sum(size for (size,) in gone)
        return bool(gone)

    def _held(self) -> int:
        total = self._db.execute("SELECT sum(length(response) + length(items)) FROM responses").fetchone()
        return total[0] or 0
