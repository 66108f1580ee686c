"""What several subcommands share: model flags, progress, loading."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ingle.config import EngineConfig
from ingle.env import Environment
from ingle.weights.catalog import CATALOG, DEFAULT_MODEL, BundledModel

if TYPE_CHECKING:
    from ingle.compose import Loaded
    from ingle.contracts.request import Pooling
    from ingle.service.models import TextModel


def add_model_reference(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}"
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model and how its engine runs."""
    add_model_reference(parser)
    add_engine_arguments(parser)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, metavar="N", help="cap the context at N tokens")
    parser.add_argument(
        "--max-rows", type=int, default=16, metavar="N", help="sequences that run at once (16)"
    )
    parser.add_argument(
        "--max-waiting", type=int, default=128, metavar="N", help="requests that may wait (128)"
    )
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="weights, KV and transients together, such as 6GiB (90 %% of what is free)",
    )
    parser.add_argument(
        "--prompt-cache",
        type=size,
        metavar="SIZE",
        help="KV kept for later requests; 0 for none (half of what KV may take)",
    )
    parser.add_argument(
        "--prompt-cache-dir",
        type=Path,
        metavar="DIR",
        help="keep that KV in files as well: it survives restarts (no)",
    )
    parser.add_argument(
        "--prompt-cache-disk",
        type=size,
        default=size("8GiB"),
        metavar="SIZE",
        help="most it takes there (8GiB)",
    )
    parser.add_argument(
        "--media-cache",
        type=size,
        metavar="SIZE",
        help="soft tokens of pictures and sounds kept for later requests; 0 for none (256MiB at most)",
    )
    parser.add_argument(
        "--drafter",
        default="auto",
        metavar="MODEL",
        help="what proposes drafts: a model or an assistant, ngram, none "
        "(auto: the assistant that comes with the model, else ngram)",
    )
    parser.add_argument(
        "--max-gap-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="how long a prompt may delay the next token of running streams (100)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="activations: auto, float32, bfloat16 or float16 (auto: float32 on CPUs)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the native kernels (all cores)")
    parser.add_argument("--offline", action="store_true", help="never touch the network")


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def size(text: str) -> int:
    """Bytes in "512MiB", "6GB", "6g" or "1000000".

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected something like 512MiB or 6GB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


class ProgressBar:
    """A bar on a terminal, a line now and then elsewhere. Writes to stderr."""

    def __init__(self) -> None:
        self._bar = None
        self._said = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if not sys.stderr.isatty() or not total:
            if what != self._said:
                print(f"ingle: {what}", file=sys.stderr, flush=True)
                self._said = what
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="B", unit_scale=True, leave=False)
        self._bar.set_description(what)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()


def load(
    args: argparse.Namespace, model: str | None = None, *, name: str | None = None, memory: int | None = None
) -> Loaded:
    """Find, fetch and open `model`, or the one that the flags name. `memory`: instead of the flag's."""
    reference: str = args.model if model is None else model
    from ingle import compose
    from ingle.weights.sources import resolve

    env = Environment.read()
    config = EngineConfig(
        max_rows=args.max_rows,
        max_waiting=args.max_waiting,
        max_gap_ms=args.max_gap_ms,
        memory_bytes=args.memory if memory is None else memory,
        prompt_cache_bytes=args.prompt_cache,
        prompt_cache_dir=args.prompt_cache_dir,
        prompt_cache_disk_bytes=args.prompt_cache_disk,
        media_cache_bytes=args.media_cache,
        context_length=args.context,
        dtype=args.dtype,
    )
    store = env.store(offline=args.offline)
    path = resolve(reference, store, ProgressBar())
    drafter = args.drafter
    if drafter == "auto":
        known = CATALOG.get(reference)
        drafter = (known.drafter if isinstance(known, BundledModel) else None) or "ngram"
    if drafter not in ("ngram", "none"):
        drafter = resolve(drafter, store, ProgressBar())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = compose.load(
            path,
            name=name or model_name(reference, path),
            config=config,
            drafter=drafter,
            threads=args.threads or env.threads,
            isa=env.isa,
        )
    for warning in caught:
        print(f"ingle: warning: {warning.message}", file=sys.stderr)
    return loaded


def model_name(reference: str, path: Path) -> str:
    """What clients call a model that nobody named."""
    return reference if reference in CATALOG else path.stem if path.suffix == ".gguf" else path.name


def open_text_model(loaded: Loaded, pooling: Pooling | None = None) -> TextModel:
    from ingle.service.models import TextModel

    try:
        return TextModel.open(loaded.name, loaded.text, loaded.engine, pooling)
    except BaseException:
        loaded.engine.close()
        raise
