"""`ingle pull`: fetch a model before it is needed."""

from __future__ import annotations

import argparse

from ingle.cli.common import ProgressBar, add_model_reference
from ingle.env import Environment
from ingle.weights.catalog import CATALOG
from ingle.weights.sources import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_reference(parser)


def run(args: argparse.Namespace) -> int:
    path = resolve(args.model, Environment.read().store(), ProgressBar())
    licence = f" (licence: {CATALOG[args.model].licence})" if args.model in CATALOG else ""
    print(f"{args.model} is at {path}{licence}")
    return 0
