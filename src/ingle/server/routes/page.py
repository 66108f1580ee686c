"""The chat page: a handful of files, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from ingle.errors import NotFound

_FOLDER = Path(__file__).parents[1] / "web"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    # Nothing but the page's own files runs or is asked; what a model writes cannot load anything.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@cache
def _files() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in _FOLDER.iterdir() if file.suffix in _TYPES}


async def page(request: Request) -> Response:
    name = request.path_params.get("file", "index.html")
    body = _files().get(name)
    if body is None:
        raise NotFound(f"there is no file {name[:80]!r}", code="not_found")
    return Response(body, media_type=_TYPES[Path(name).suffix], headers=_HEADERS)
