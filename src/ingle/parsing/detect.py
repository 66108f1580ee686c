"""Which marks a model uses: told from its chat template and its tokenizer, once, at load."""

from __future__ import annotations

from ingle.parsing.markup import Markup, Region, ToolFormat, mark
from ingle.parsing.tools.gemma4 import Gemma4Calls
from ingle.parsing.tools.json_calls import BareJson, TaggedJson
from ingle.parsing.tools.mistral import MistralCalls
from ingle.parsing.tools.pythonic import PythonicCalls
from ingle.parsing.tools.qwen_xml import QwenXml
from ingle.text.tokenizer import Tokenizer

# Opening mark, closing mark, what content begins with; and whether the marks must be tokens.
_REASONING = (
    ("<|channel>", "<channel|>", "thought\n", True),  # Gemma 4
    ("[THINK]", "[/THINK]", "", True),  # Mistral
    ("<think>", "</think>", "", False),  # Qwen and many others
)


def markup_of(template: str, tokenizer: Tokenizer) -> Markup:
    """What stands in the template decides.

    Raises:
        CheckpointError: a mark that must be one token of the tokenizer is not.
    """
    return Markup(_reasoning(template, tokenizer), _tools(template, tokenizer))


def _reasoning(template: str, tokenizer: Tokenizer) -> Region | None:
    for begin, end, label, tokens in _REASONING:
        if begin in template or end in template:
            return Region(mark(begin, tokenizer, token=tokens), mark(end, tokenizer, token=tokens), label)
    return None


def _tools(template: str, tokenizer: Tokenizer) -> ToolFormat | None:
    if "<|tool_call>" in template:
        region = Region(
            mark("<|tool_call>", tokenizer, token=True), mark("<tool_call|>", tokenizer, token=True)
        )
        return Gemma4Calls(region, mark('<|"|>', tokenizer, token=True))
    if "[TOOL_CALLS]" in template:
        arguments = mark("[ARGS]", tokenizer) if "[ARGS]" in template else None
        return MistralCalls(mark("[TOOL_CALLS]", tokenizer, token=True), arguments)
    if "<tool_call>" in template:
        region = Region(mark("<tool_call>", tokenizer), mark("</tool_call>", tokenizer))
        return QwenXml(region) if "<function=" in template else TaggedJson(region)
    if "tools" not in template:
        return None
    tag = mark("<|python_tag|>", tokenizer) if tokenizer.token_id("<|python_tag|>") is not None else None
    if "[func_name" in template or "function calls in the format" in template:
        return PythonicCalls(tag)
    if '"parameters"' in template or "<|python_tag|>" in template:
        return BareJson(tag)
    return None
