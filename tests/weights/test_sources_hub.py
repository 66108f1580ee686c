"""Hub repositories, against a small hub on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from ingle.config import StoreConfig
from ingle.errors import SourceError
from ingle.weights.checkpoint import open_checkpoint
from ingle.weights.sources import resolve

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "llama"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": (FIXTURE / "config.json").read_bytes(),
    "model.safetensors": (FIXTURE / "model.safetensors").read_bytes(),
    "README.md": b"not wanted",
    "pytorch_model.bin": b"not wanted either",
}


class Hub(BaseHTTPRequestHandler):
    served: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/good/model"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            body = json.dumps({"id": "good/model", "sha": COMMIT, "siblings": siblings, "tags": []}).encode()
            if "/tree/" in path:
                tree = [
                    {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                    for n, d in FILES.items()
                ]
                body = json.dumps(tree).encode()
            self._send(200, body, {"content-type": "application/json"}, with_body)
        elif path.startswith("/good/model/resolve/") and (data := FILES.get(path.rpartition("/")[2])):
            if with_body:
                self.served.append(path.rpartition("/")[2])
            etag = hashlib.sha1(data).hexdigest()
            self._send(200, data, {"etag": f'"{etag}"', "x-repo-commit": COMMIT}, with_body)
        else:
            self._send(404, b"{}", {"x-error-code": "RepoNotFound"}, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repository_is_fetched_opened_and_kept(hub: str, tmp_path: Path) -> None:
    store = StoreConfig(models_dir=tmp_path, hub_endpoint=hub)
    folder = resolve("good/model", store)
    assert open_checkpoint(folder).config.family == "llama"
    assert set(Hub.served) == {"config.json", "model.safetensors"}
    offline = StoreConfig(models_dir=tmp_path, hub_endpoint=hub, offline=True)
    assert resolve("good/model", offline) == folder


@pytest.mark.parametrize("endpoint", ["hub", "nobody listens"])
def test_what_cannot_be_fetched_says_why(hub: str, tmp_path: Path, endpoint: str) -> None:
    address = hub if endpoint == "hub" else "http://127.0.0.1:9"
    with pytest.raises(SourceError, match=r"cannot fetch bad/model from the hub: ."):
        resolve("bad/model", StoreConfig(models_dir=tmp_path, hub_endpoint=address))
