"""Shared fixtures and the hypothesis profile of the whole suite."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


if extension := os.environ.get("INGLE_TEST_EXTENSION"):  # another build of it: with sanitizers
    import mlx.core  # noqa: F401 # pyright: ignore[reportUnusedImport]

    loader = importlib.machinery.ExtensionFileLoader("ingle.kernels._cpu", extension)
    spec = importlib.util.spec_from_loader("ingle.kernels._cpu", loader)
    assert spec is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[spec.name])


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's .gguf file, fetched through Ingle's own sources if it is not there yet."""
    from ingle.env import Environment
    from ingle.weights.sources import resolve

    return resolve("smollm2-135m-instruct", Environment.read().store())


@pytest.fixture(params=["avx512", "avx2", "neon", "portable"], scope="module")
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of the native extension that this CPU has, while the test runs."""
    from ingle.kernels import native

    if not native.available() or request.param not in native.cpu.isas():
        pytest.skip(f"no {request.param} here")
    native.configure(isa=request.param)
    yield request.param
    native.configure(isa=native.cpu.isas()[0])
