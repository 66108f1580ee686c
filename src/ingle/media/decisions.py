"""The decision log: what was refused or dialled and why, for operators and never for clients."""

from __future__ import annotations

import json
import logging

from ingle.media.url import Target

_log = logging.getLogger("ingle.media.decisions")


def log_decision(
    request_id: str, verdict: str, code: str, detail: str, hop: int = 0, target: Target | None = None
) -> None:
    """One JSON object a line. Paths and queries stay out: they hold people's secrets."""
    if not _log.isEnabledFor(logging.INFO):
        return
    entry = {"request": request_id, "verdict": verdict, "code": code, "detail": detail[:500], "hop": hop}
    if target is not None:
        entry |= {"scheme": target.scheme, "host": target.host, "port": target.port}
    _log.info("%s", json.dumps(entry))
