"""`ingle fit`: what a model and a context need, and whether this machine has it."""

from __future__ import annotations

import argparse

from ingle.cli.common import ProgressBar, add_model_reference, size
from ingle.config import EngineConfig
from ingle.env import Environment
from ingle.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_reference(parser)
    parser.add_argument("--ctx", type=int, metavar="N", help="tokens of one sequence (the model's context)")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="sequences of that length (1)")
    parser.add_argument(
        "--memory", type=size, metavar="SIZE", help="memory to fit into (90 %% of what is free)"
    )
    parser.add_argument("--dtype", default="auto", help="activations, as for serve")
    parser.add_argument("--offline", action="store_true", help="never touch the network")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when it fits, 1 when it does not."""
    from ingle import compose
    from ingle.weights.checkpoint import open_checkpoint
    from ingle.weights.sources import resolve

    env = Environment.read()
    config = EngineConfig(dtype=args.dtype, max_rows=args.rows)
    path = resolve(args.model, env.store(offline=args.offline), ProgressBar())
    limit = open_checkpoint(path).config.context_length
    tokens = limit if args.ctx is None else args.ctx
    if not 1 <= tokens <= limit:
        raise ConfigError(f"--ctx must be 1 to {limit}, the model's context, got {tokens}")
    fit = compose.fit(path, tokens=tokens, rows=args.rows, config=config)
    free = args.memory
    if free is None and fit.available is not None:
        free = int(0.9 * fit.available)
    lines = [("weights", fit.weights)]
    lines += [(f"KV, {layers} {kind} layers", nbytes) for kind, layers, nbytes in fit.kinds]
    lines += [(f"KV, all {args.rows} sequences", args.rows * fit.row), ("a step", fit.transients)]
    print(f"{path.name} ({fit.description}), {args.rows} x {tokens} tokens")
    for name, nbytes in [*lines, ("together", fit.total)]:
        print(f"  {name:28} {nbytes / 2**20:12.1f} MiB")
    if free is None:
        print("This system does not say how much memory is free.")
        return 0
    fits = fit.total <= free
    print(f"  {'may be taken':28} {free / 2**20:12.1f} MiB")
    print(
        "It fits." if fits else "It does NOT fit: take a smaller context, fewer sequences or another model."
    )
    return 0 if fits else 1
