"""Where a model can come from: a table of sources, asked in order."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingle.config import StoreConfig
from ingle.errors import SourceError
from ingle.weights.catalog import CATALOG, BundledModel
from ingle.weights.package_source import Progress, catalog_path, fetch

_HUB_ID = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True, slots=True)
class Source:
    """`matches` looks at the reference alone; `resolve` gives a folder or a .gguf file."""

    name: str
    matches: Callable[[str], bool]
    resolve: Callable[[str, StoreConfig, Progress], Path]


def _quiet(what: str, done: int, total: int) -> None:
    return None


def resolve(reference: str, store: StoreConfig, progress: Progress = _quiet) -> Path:
    """The folder or file that `reference` names, fetched if it has to be.

    Raises:
        SourceError: nothing matches (with what was tried), or it cannot be fetched.
    """
    for source in SOURCES:
        if source.matches(reference):
            return source.resolve(reference, store, progress)
    close = difflib.get_close_matches(reference, CATALOG, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise SourceError(
        f"{reference!r} is no file or folder here, no hub repository (org/name) and no catalog model "
        f"({', '.join(CATALOG)}){hint}"
    )


def _catalog(reference: str, store: StoreConfig, progress: Progress) -> Path:
    model = CATALOG[reference]
    if isinstance(model, BundledModel):
        return model.path
    path = catalog_path(model, store.models_dir)
    if path.is_file():
        return path
    if store.offline:
        raise SourceError(
            f"{reference} is not in {store.models_dir} and offline is set; run 'ingle pull {reference}'"
        )
    return fetch(model, store.models_dir, progress)


def _is_local(reference: str) -> bool:
    return (
        Path(reference).expanduser().exists()
        or reference.startswith(("/", "./", "../", "~"))
        or (reference.endswith(".gguf"))
    )


def _local(reference: str, store: StoreConfig, progress: Progress) -> Path:
    path = Path(reference).expanduser()
    if not path.exists():
        raise SourceError(f"{path} does not exist")
    if path.is_dir() and not (path / "config.json").is_file():
        raise SourceError(
            f"{path} holds no config.json; a model folder has config.json, safetensors, tokenizer.json"
        )
    return path


def _hub(reference: str, store: StoreConfig, progress: Progress) -> Path:
    found = _HUB_ID.fullmatch(reference)
    assert found is not None
    from huggingface_hub import snapshot_download  # slow to import, and only needed here

    progress(f"fetching {reference} from the hub", 0, 0)
    try:
        folder = snapshot_download(
            found["repo"],
            revision=found["revision"],
            cache_dir=store.models_dir / "hub",
            allow_patterns=_HUB_FILES,
            endpoint=store.hub_endpoint,
            local_files_only=store.offline,
        )
    except Exception as error:  # the library raises its own, httpx's and OS errors
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(f"cannot fetch {reference} from the hub: {first}") from None
    return Path(folder)


SOURCES: tuple[Source, ...] = (
    Source("catalog", lambda reference: reference in CATALOG, _catalog),
    Source("local file or folder", _is_local, _local),
    Source("hub repository", lambda reference: _HUB_ID.fullmatch(reference) is not None, _hub),
)
