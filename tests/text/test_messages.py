"""Messages of every client come out in one form, and bad ones are named."""

from __future__ import annotations

import pytest

from ingle.errors import InvalidRequest
from ingle.text.messages import normalise

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def test_developer_is_system_and_both_merge_at_the_front() -> None:
    got = normalise(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {
                "role": "system",
                "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
            },
        ]
    )
    assert got == [{"role": "system", "content": "be brief\n\nbe kind"}, {"role": "user", "content": "hi"}]


def test_a_turn_with_only_tool_calls_is_kept() -> None:
    got = normalise(
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "a cat", "name": "look"},
        ]
    )
    assert got[1]["content"] == ""
    assert got[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": 1}}
    assert got[2] == {"role": "tool", "content": "a cat", "tool_call_id": "c1", "name": "look"}


def test_arguments_that_are_no_object_stay_text() -> None:
    broken = {**CALL, "function": {"name": "look", "arguments": "{oops"}}
    got = normalise([{"role": "assistant", "tool_calls": [broken]}])
    assert got[0]["tool_calls"][0]["function"]["arguments"] == "{oops"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "messages[1].role"),
        ([{"content": "b"}], "messages[0].role"),
        ([{"role": ["user"], "content": "b"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "assistant", "content": "x", "tool_calls": "y"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": 1}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_bad_messages_are_named(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise(messages)
    assert caught.value.param == param
    assert param in str(caught.value)
