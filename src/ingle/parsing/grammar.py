"""Grammars on a model's own tokenizer: compiled under caps, kept, and followed row by row.

The engine of it is llguidance (Earley over a lexer of regular expressions, MIT licence). Here lie the caps,
the cache and the adapter to `contracts.grammar`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import llguidance
import numpy as np

from ingle.contracts.grammar import GrammarFailed, TokenMask
from ingle.errors import InvalidRequest
from ingle.text.tokenizer import Tokenizer

MAX_CHARS = 256 * 1024  # of a grammar's source
MAX_KEPT = 256  # compiled grammars
MAX_KEPT_CHARS = 8 * 1024 * 1024  # of their sources
COMPILE_TIMEOUT_S = 10.0
_AT_ONCE = 2  # compilations

# Whitespace between the tokens of a JSON text: a few blanks, or a line break and its indentation. A model
# that may write more fills its answer with it.
_JSON_OPTIONS: Mapping[str, Any] = {"whitespace_pattern": r"(\r?\n[ \t]{0,40}|[ \t]{1,2})"}
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)


class LarkSource:
    """Parts of one grammar: the start rule in Lark, and grammars that it names as `@name`."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._rules: list[str] = []

    def rule(self, name: str, body: str) -> str:
        """Adds `name: body`; returns `name`."""
        self._rules.append(f"{name}: {body}")
        return name

    def json(self, schema: Any) -> str:
        """A JSON text that follows `schema`, as a Lark expression."""
        content: Any = dict(schema) if isinstance(schema, dict) else schema
        if isinstance(content, dict):
            content["x-guidance"] = _JSON_OPTIONS
        return self._part({"json_schema": content})

    def lark(self, text: str) -> str:
        return self._part({"lark_grammar": text})

    def regex(self, text: str) -> str:
        inner = json.loads(llguidance.LLMatcher.grammar_from_regex(text))
        return self._part({"lark_grammar": inner["grammars"][0]["lark_grammar"]})

    def _part(self, body: dict[str, Any]) -> str:
        name = f"part{len(self._parts)}"
        self._parts.append({"name": name, **body})
        return f"@{name}"

    def text(self) -> str:
        """The whole, as llguidance takes it."""
        main = {"name": "main", "lark_grammar": "\n".join(self._rules)}
        return json.dumps({"grammars": [main, *self._parts]}, ensure_ascii=False)


class Grammars:
    """Compiled grammars of one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()
        self._turns: asyncio.Semaphore | None = None

    @cached_property
    def _native(self) -> llguidance.LLTokenizer:
        ends = self._tokenizer.eos_token_ids
        if not ends:
            raise InvalidRequest(
                "this model's tokenizer declares no end of a turn, so no grammar can end", param="model"
            )
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer)),
            n_vocab=max(self._vocab_size, self._tokenizer.vocab_size),
            eos_token=list(ends),
        )

    async def compile(self, source: str, param: str) -> CompiledGrammar:
        """Off the event loop and the engine thread, a few at a time.

        Raises:
            InvalidRequest: too long, not valid, or of a kind that is not supported; says which.
        """
        with self._lock:
            found = self._kept.get(source)
            if found is not None:
                self._kept.move_to_end(source)
                return found
        if len(source) > MAX_CHARS:
            raise InvalidRequest(
                f"{param} makes a grammar of {len(source)} characters, the limit is {MAX_CHARS}",
                param=param,
                code="grammar_too_large",
            )
        if self._turns is None:
            self._turns = asyncio.Semaphore(_AT_ONCE)
        async with self._turns:
            try:
                work = asyncio.to_thread(self._compiled, source, param)
                compiled = await asyncio.wait_for(work, COMPILE_TIMEOUT_S)
            except TimeoutError:
                raise InvalidRequest(
                    f"{param} took longer than {COMPILE_TIMEOUT_S:g} s to compile",
                    param=param,
                    code="grammar_too_large",
                ) from None
        with self._lock:
            if source not in self._kept:
                self._kept[source] = compiled
                self._chars += len(source)
            while len(self._kept) > MAX_KEPT or self._chars > MAX_KEPT_CHARS:
                old, _ = self._kept.popitem(last=False)
                self._chars -= len(old)
        return compiled

    def _compiled(self, source: str, param: str) -> CompiledGrammar:
        matcher = llguidance.LLMatcher(self._native, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            message = " ".join(matcher.get_error().split())[:400]
            raise InvalidRequest(f"{param} cannot be followed: {message}", param=param, code="invalid_schema")
        return CompiledGrammar(matcher, self._native.vocab_size)


class _Vocabulary:
    """A tokenizer in the form that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=True)


class CompiledGrammar:
    """Implements `contracts.grammar.Grammar`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def start(self) -> MatcherState:
        return MatcherState(self._matcher.deep_copy(), self._vocab_size)


class MatcherState:
    """Implements `contracts.grammar.GrammarState`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._vocab_size = vocab_size

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()

    def masks(self, drafts: Sequence[int]) -> list[TokenMask | None]:
        out: list[TokenMask | None] = [self._mask()]
        followed = 0
        for draft in drafts:
            mask = out[-1]
            assert mask is not None
            # What is drafted behind a token that is not allowed, or behind the end, cannot be accepted.
            if self._matcher.is_stopped() or draft >= len(mask) or not mask[draft]:
                break
            if not self._matcher.consume_token(draft):
                raise GrammarFailed(self._problem())
            followed += 1
            out.append(self._mask())
        if followed and not self._matcher.rollback(followed):
            raise GrammarFailed(self._problem())
        return out

    def advance(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)  # an error shows in the next mask

    def _mask(self) -> TokenMask:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise GrammarFailed(self._problem())
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].view(np.bool_)

    def _problem(self) -> str:
        detail = " ".join(self._matcher.get_error().split())[:200]
        return f"the grammar went over a limit while the answer was written: {detail}"
