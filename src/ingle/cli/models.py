"""`ingle models`: the catalog, and what of it is on this machine."""

from __future__ import annotations

import argparse

from ingle.env import Environment
from ingle.weights.catalog import CATALOG, BundledModel
from ingle.weights.package_source import catalog_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    folder = Environment.read().models_dir
    width = max(map(len, CATALOG))
    for model in CATALOG.values():
        bundled = isinstance(model, BundledModel)
        here = "here" if bundled or catalog_path(model, folder).is_file() else "not fetched"
        print(
            f"{model.name:{width}}  {model.nbytes / 1e6:7.1f} MB  {here:11}  {model.about}; {model.licence}"
        )
    print(f"\nModels are kept in {folder}. A .gguf file, a model folder or a hub repository works as well.")
    return 0
