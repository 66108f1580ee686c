"""A tiny real model behind a real socket, on a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import httpx2
from openai import OpenAI

from ingle.config import EngineConfig, MediaConfig, ServerConfig
from ingle.contracts.text_assets import TextAssets
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.server.app import create_app
from ingle.server.run import Server
from ingle.service.model_pool import ModelPool
from ingle.service.models import TextModel
from support.tiny_tokenizer import MEDIA_VOCAB_SIZE, TEMPLATE, VOCAB_SIZE, tiny_assets
from support.toy import ToyGraph

CONTEXT = 900


class WideToy(ToyGraph):
    """The toy decoder over the tiny tokenizer's vocabulary: it speaks bytes, often broken ones."""

    def __init__(self, vocab: int = VOCAB_SIZE) -> None:
        super().__init__(vocab=vocab)


class Running:
    def __init__(
        self,
        config: ServerConfig,
        template: str | None = TEMPLATE,
        *,
        media: MediaConfig | None = None,
        media_assets: TextAssets | None = None,  # of a model that takes media
        model: TextModel | None = None,  # instead of the toy
        pool: ModelPool | None = None,  # instead of it alone
        **engine: Any,
    ) -> None:
        self.model = model or self._toy(template, media_assets, engine)
        self.engine = cast("Engine", self.model.engine)
        self.app = create_app(pool or ModelPool.of(self.model), config, media)
        ready = threading.Event()
        self.server = Server(self.app, config, lambda _: ready.set())
        run = self.server.serve([self.server.socket])
        self.thread = threading.Thread(target=lambda: asyncio.run(run), daemon=True)
        self.thread.start()
        assert ready.wait(20)
        self.url = self.server.url

    def _toy(
        self, template: str | None, media_assets: TextAssets | None, engine: dict[str, Any]
    ) -> TextModel:
        vocab = VOCAB_SIZE if media_assets is None else MEDIA_VOCAB_SIZE
        info = EngineInfo(
            vocab_size=vocab, context_length=CONTEXT, backend="toy", takes_media=media_assets is not None
        )
        toy = Engine(lambda: WideToy(vocab), info, EngineConfig(**engine), row_invariant=False)
        return TextModel.open("toy", media_assets or tiny_assets(template), toy)

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=0, **options)

    def post(self, path: str, body: bytes | str, headers: dict[str, str] | None = None) -> httpx2.Response:
        sent = {"content-type": "application/json", **(headers or {})}
        return httpx2.post(self.url + path, content=body, headers=sent, timeout=60)

    def settle(self) -> None:
        """Wait until the engine has nothing to do."""
        for _ in range(500):
            stats = self.engine.stats()
            if stats.running == 0 and stats.waiting == 0:
                return
            time.sleep(0.01)
        raise AssertionError("the engine is still busy")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        self.engine.close()
        assert not self.thread.is_alive()
