"""A model as the edge sees it: its engine, its tokenizer, its template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingle.contracts.media import MediaSpec
from ingle.contracts.request import Pooling
from ingle.contracts.text_assets import TextAssets
from ingle.engine.handle import EngineHandle
from ingle.errors import CheckpointError, InvalidRequest
from ingle.parsing.detect import markup_of
from ingle.parsing.grammar import Grammars
from ingle.parsing.markup import Markup
from ingle.service.streams import Bridges
from ingle.text.media_prompt import resolve_tokens
from ingle.text.template import ChatTemplate
from ingle.text.tokenizer import Tokenizer


class TextModel:
    """Made by `open`. `name` is what clients ask for."""

    def __init__(
        self,
        name: str,
        engine: EngineHandle,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        sampling_defaults: Mapping[str, Any],
        media: MediaSpec | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.tokenizer = tokenizer
        self.sampling_defaults = sampling_defaults
        self.media = media  # None: text only
        self.pooling: Pooling | None = pooling  # None: makes no embeddings
        self.bridges = Bridges(engine)
        self._template = template
        self.markup = Markup() if template is None else markup_of(template.source, tokenizer)
        self.grammars = Grammars(tokenizer, engine.info.vocab_size)

    @classmethod
    def open(
        cls,
        name: str,
        assets: TextAssets | None,
        engine: EngineHandle,
        pooling: Pooling | None = None,
    ) -> TextModel:
        """`pooling`: of embeddings; None: what the checkpoint says.

        Raises:
            CheckpointError: there is no tokenizer, or tokenizer or template are broken.
        """
        if assets is None:
            raise CheckpointError("the checkpoint has no tokenizer; a folder needs tokenizer.json")
        tokenizer = Tokenizer.load(assets)
        template = None
        if assets.chat_template is not None:
            template = ChatTemplate(assets.chat_template, assets.special_tokens)
        defaults: dict[str, Any] = dict(assets.sampling_defaults)
        if "top_k" in defaults:
            defaults["top_k"] = int(defaults["top_k"])
        media = resolve_tokens(assets.media, tokenizer) if assets.media and engine.info.takes_media else None
        return cls(name, engine, tokenizer, template, defaults, media, pooling or assets.pooling)

    @property
    def template(self) -> ChatTemplate:
        """Raises InvalidRequest: the model has no chat template."""
        if self._template is None:
            raise InvalidRequest(
                f"model {self.name!r} has no chat template; use /v1/completions", param="messages"
            )
        return self._template
