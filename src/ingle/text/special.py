"""Turn a chat into ids so that no user can write a control token.

A template's output is one string in which "<|im_end|>" from the template and the same text typed by
a user look alike. So before rendering, such texts in the caller's strings are broken by a marker
character; afterwards the result is cut at the unbroken ones, and the rest is encoded as plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ingle.text.template import ChatTemplate
from ingle.text.tokenizer import Tokenizer

_MARKERS = range(0xE000, 0xF8FF)  # Unicode's private use area


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
    expand: Callable[[str], str] = str,
) -> list[int]:
    """Ids of a rendered chat. Equal to encoding the plain rendering when no string holds control text.

    `expand` may rewrite the rendered text; what it finds there of control texts is the template's own.

    Raises:
        InvalidRequest: the template refuses these messages or exceeds its limits.
    """
    pattern = tokenizer.special_pattern
    strings: list[str] = []

    def collect(text: str) -> str:
        strings.append(text)
        return text

    _map_strings([messages, tools, extra], collect)
    hostile = pattern is not None and any(pattern.search(text) for text in strings)
    if pattern is None or not hostile:
        text = template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
        )
        return tokenizer.encode(expand(text), special=True)
    used = set("".join(strings))
    marker = next(chr(code) for code in _MARKERS if chr(code) not in used)

    def shield(text: str) -> str:
        return pattern.sub(lambda found: found[0][0] + marker + found[0][1:], text)

    safe_messages, safe_tools, safe_extra = _map_strings([messages, tools, extra], shield)
    text = expand(
        template.render(
            safe_messages, tools=safe_tools, add_generation_prompt=add_generation_prompt, extra=safe_extra
        )
    )
    ids: list[int] = []
    at = 0
    for found in pattern.finditer(text):
        ids += tokenizer.encode(text[at : found.start()].replace(marker, ""), special=False)
        ids += tokenizer.encode(found[0], special=True)
        at = found.end()
    return ids + tokenizer.encode(text[at:].replace(marker, ""), special=False)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON-like data with `change` applied to each string, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_map_strings(k, change): _map_strings(v, change) for k, v in items}
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in cast("Sequence[Any]", value)]
    return value
