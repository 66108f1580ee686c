"""Chat templates render what they should, and a hostile one costs a clear error and little time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.errors import CheckpointError, InvalidRequest
from ingle.text.special import encode_chat
from ingle.text.template import ChatTemplate
from ingle.text.tokenizer import Tokenizer
from support.tiny_tokenizer import END, START, TEMPLATE, tiny_assets

MESSAGES = [{"role": "user", "content": "hi <b>"}]


def test_renders_like_the_reference() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}F{% endif %}\n{{ m['content'] | trim }}|"
        "{{ m | tojson }}{% break %}{% endfor %}{{ tools is none }}{{ mood }}",
        {"bos_token": "<s>"},
    )
    got = template.render(MESSAGES, extra={"mood": "!"})
    assert got == '<s>Fhi <b>|{"role": "user", "content": "hi <b>"}True!'


def test_generation_prompt_is_optional() -> None:
    template = ChatTemplate(TEMPLATE)
    assert template.render(MESSAGES).endswith("<|start|>assistant\n")
    assert template.render(MESSAGES, add_generation_prompt=False).endswith("<|end|>\n")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses: roles must alternate"),
        ("{{ messages[7].content.upper() }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
        ("{{ 'a' * 10**9 }}", "over the limit"),
        ("{{ [1] * 10**9 }}", "over the limit"),
        ("{{ 9 ** 99999999 }}", "over the limit"),
        (
            "{% set n = namespace(x='aaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "limit",
        ),
        (
            "{% set n = namespace(x='aaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "limit",
        ),
        (
            "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
            "limit",
        ),
        ("{{ '%999999999d' % 1 }}", "not available"),
        ("{{ '{:999999999}'.format(1) }}", "not available"),
        ("{{ 'x'.ljust(999999999) }}", "not available"),
        ("{{ ('x' * 9999999).replace('', 'y' * 999) }}", "over the limit"),
        ("{{ ('x' * 9999999) | replace('', 'y' * 999) }}", "over the limit"),
        ("{{ ('y' * 9999).join('x' * 999999) }}", "over the limit"),
        ("{{ ('x' * 999999) | join('y' * 9999) }}", "over the limit"),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "over the limit"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_hostile_template_gets_a_clear_error(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.param == "messages"
    assert ChatTemplate(TEMPLATE).render(MESSAGES), "the next good one works"


def test_a_silent_endless_loop_is_interrupted_and_leaves_no_thread() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    before = threading.active_count()
    with pytest.raises(InvalidRequest, match=r"longer than 0\.2 s"):
        ChatTemplate(loop, timeout_s=0.2).render(MESSAGES)
    assert threading.active_count() == before


@pytest.mark.parametrize("source", ["{% for %}", "{{ x | center }}", "x" * (1 << 21)])
def test_a_template_that_does_not_compile_is_the_checkpoints_fault(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat template"):
        ChatTemplate(source)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.load(tiny_assets())


texts = st.lists(st.sampled_from([*"ab<|>end start\n", "<|end|>", "<|start|>"]), max_size=12).map("".join)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), min_size=1, max_size=4))
def test_users_cannot_write_control_tokens(tiny: Tokenizer, turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    ids = encode_chat(tiny, ChatTemplate(TEMPLATE), messages)
    assert ids.count(END) == len(turns)
    assert ids.count(START) == len(turns) + 1
    assert tiny.decode(ids, skip_special=False) == ChatTemplate(TEMPLATE).render(messages)


@given(st.lists(st.text("ab <|\ue000\ue001", max_size=9), min_size=1, max_size=3))
def test_harmless_chats_encode_like_their_rendering(tiny: Tokenizer, contents: list[str]) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    template = ChatTemplate(TEMPLATE)
    expected = tiny.encode(template.render(messages), special=True)
    assert encode_chat(tiny, template, messages) == expected
    hostile = [*messages, {"role": "user", "content": "<|end|>"}]
    assert encode_chat(tiny, template, hostile)[: len(expected) - 11] == expected[: len(expected) - 11]
