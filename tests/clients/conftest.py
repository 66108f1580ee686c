"""One real server for all clients: the tiny Gemma 4 that comes with Ingle, and a scripted one for agents."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator

import pytest

from ingle import compose
from ingle.config import EngineConfig, ServerConfig
from ingle.service.models import TextModel
from support.scripted import TINY, scripted_model
from support.served import Running


def agent(prompt: str) -> str:
    """Asks for the weather of the named city, then tells what the tool gave."""
    result = re.findall(r"response:\w+\{value:<\|\"\|>(.*?)<\|\"\|>\}", prompt, re.DOTALL)
    if result:
        return f"It is {result[-1]}."
    if "declaration:" in prompt:
        name = re.findall(r"declaration:(\w+)\{", prompt)[-1]
        argument = re.findall(r"properties:\{(\w+):", prompt)[-1]
        return (
            "<|channel>thought\nThe tool knows.<channel|>Let me see."
            f'<|tool_call>call:{name}{{{argument}:<|"|>Paris<|"|>}}<tool_call|>'
        )
    return "Hello **you** 👋"


@pytest.fixture(scope="session")
def tiny() -> Iterator[Running]:
    """The real model: answers of tools and schemas are forced by grammars."""
    loaded = compose.load(TINY, name="tiny-gemma4", config=EngineConfig(max_rows=4, memory_bytes=2 * 2**30))
    running = Running(ServerConfig(port=0), model=TextModel.open("tiny-gemma4", loaded.text, loaded.engine))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def scripted() -> Iterator[Running]:
    running = Running(ServerConfig(port=0), model=scripted_model(agent))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def foreign_sockets() -> Iterator[None]:
    """Some clients leave connections to the garbage collector, and say so while nobody can help it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
