"""Clients as people have them, unchanged, against a real server: chat, streams, tools, schemas, an agent's loop."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from PIL import Image

from support.frameworks import HI, PARAMETERS, TOOL, Person
from support.served import Running


def picture() -> str:
    out = BytesIO()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def test_openai_chat(tiny: Running, scripted: Running) -> None:
    client: Any = tiny.client()
    model = "tiny-gemma4"
    forced = client.chat.completions.create(
        model=model, messages=HI, tools=[TOOL], tool_choice="required", seed=1
    )
    calls = forced.choices[0].message.tool_calls
    assert forced.choices[0].finish_reason == "tool_calls" and calls
    assert json.loads(calls[0].function.arguments).keys() == {"city"}
    parsed = client.chat.completions.parse(
        model=model, messages=HI, response_format=Person, seed=2, logprobs=True
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
    content = parsed.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == parsed.choices[0].message.content
    with client.chat.completions.stream(model=model, messages=HI, response_format=Person, seed=2) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    seen: Any = [
        {"type": "text", "text": "Colour?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture()}},
    ]
    answer: Any = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": seen}], max_tokens=5
    )
    assert answer.usage.prompt_tokens_details.image_tokens > 10
    told: Any = scripted.client().chat.completions.create(model="scripted", messages=HI, tools=[TOOL])
    message = told.choices[0].message
    assert message.content == "Let me see." and message.reasoning_content == "The tool knows."
    assert told.usage.completion_tokens_details.reasoning_tokens > 3


def test_openai_stream_of_tools(scripted: Running) -> None:
    client: Any = scripted.client()
    with client.chat.completions.stream(model="scripted", messages=HI, tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds and "content.delta" in kinds
    whole: Any = client.chat.completions.create(model="scripted", messages=HI, tools=[TOOL])
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_openai_responses(tiny: Running, scripted: Running) -> None:
    client: Any = tiny.client()
    first = client.responses.create(model="tiny-gemma4", input="Hello", max_output_tokens=16)
    assert first.status in ("completed", "incomplete") and first.usage.output_tokens <= 16
    second = client.responses.create(
        model="tiny-gemma4", input="And?", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.usage.input_tokens > first.usage.input_tokens + 3
    assert [
        item.content for item in client.responses.input_items.list(second.id).data if item.role == "user"
    ] == ["Hello", "And?"]
    parsed = client.responses.parse(model="tiny-gemma4", input="Who?", text_format=Person)
    assert isinstance(parsed.output_parsed, Person)
    seen: Any = [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64," + picture()}],
        }
    ]
    assert (
        client.responses.create(model="tiny-gemma4", input=seen, max_output_tokens=16).usage.input_tokens > 20
    )
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not kept here"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="not kept here"):
        client.responses.create(model="tiny-gemma4", input="x", previous_response_id=first.id)
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    agent: Any = scripted.client()
    with agent.responses.stream(model="scripted", input="Weather?", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_response()
    assert [item.type for item in called.output] == ["reasoning", "message", "function_call"]
    assert kinds.count("response.function_call_arguments.done") == 1 and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    call = called.output[2]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    told = agent.responses.create(
        model="scripted", previous_response_id=called.id, input=[result], tools=[tool]
    )
    assert told.output_text == "It is sunny."


def test_anthropic(tiny: Running, scripted: Running) -> None:
    client: Any = anthropic.Anthropic(base_url=scripted.url, api_key="any", max_retries=0)
    tool: Any = {"name": "weather", "description": "of a city", "input_schema": PARAMETERS}
    with client.messages.stream(
        model="scripted", max_tokens=200, messages=HI, tools=[tool], thinking={"type": "adaptive"}
    ) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_message()
    assert [block.type for block in called.content] == ["thinking", "text", "tool_use"]
    assert called.stop_reason == "tool_use" and called.content[2].input == {"city": "Paris"}
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    whole: Any = client.messages.create(model="scripted", max_tokens=200, messages=HI, tools=[tool])
    assert [b.type for b in whole.content] == [b.type for b in called.content]
    result: Any = [
        {
            "type": "tool_result",
            "tool_use_id": called.content[2].id,
            "content": [{"type": "text", "text": "sunny"}],
        }
    ]
    turns: Any = [*HI, {"role": "assistant", "content": called.content}, {"role": "user", "content": result}]
    told = client.messages.create(model="scripted", max_tokens=200, messages=turns, tools=[tool])
    assert told.content[0].text == "It is sunny." and told.stop_reason == "end_turn"
    assert (
        client.messages.count_tokens(model="scripted", messages=turns, tools=[tool]).input_tokens
        == told.usage.input_tokens
    )
    stopped: Any = client.messages.create(
        model="scripted", max_tokens=200, messages=HI, stop_sequences=["you"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == (
        "stop_sequence",
        "you",
        "Hello **",
    )
    real: Any = anthropic.Anthropic(base_url=tiny.url, api_key="any", max_retries=0)
    forced = real.messages.create(
        model="tiny-gemma4", max_tokens=100, messages=HI, tools=[tool], tool_choice={"type": "any"}
    )
    assert forced.stop_reason == "tool_use" and set(forced.content[0].input) == {"city"}
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture()}}
    seen: Any = [{"role": "user", "content": [image, {"type": "text", "text": "Colour?"}]}]
    assert real.messages.create(model="tiny-gemma4", max_tokens=5, messages=seen).usage.input_tokens > 20
    assert real.messages.count_tokens(model="tiny-gemma4", messages=seen).input_tokens > 20


def test_ollama(tiny: Running, scripted: Running) -> None:
    client: Any = ollama.Client(host=scripted.url)
    assert [m.model for m in client.list().models] == ["scripted"]

    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return f"sunny in {city}"

    messages: list[Any] = [*HI]
    answer: Any = client.chat("scripted:latest", messages, tools=[weather])
    assert answer.message.thinking == "The tool knows." and answer.done_reason == "stop"
    call = answer.message.tool_calls[0].function
    messages += [
        answer.message,
        {"role": "tool", "tool_name": call.name, "content": weather(**call.arguments)},
    ]
    parts: Any = list(client.chat("scripted", messages, tools=[weather], stream=True))
    assert "".join(part.message.content for part in parts) == "It is sunny in Paris."
    assert parts[-1].done and parts[-1].eval_count > 3 and parts[-1].eval_duration > 0
    shaped: Any = ollama.Client(host=tiny.url).chat(
        "tiny-gemma4", HI, format=Person.model_json_schema(), options={"seed": 2}
    )
    Person.model_validate_json(shaped.message.content)
    with pytest.raises(ollama.ResponseError, match="not served here"):
        client.chat("other", messages)


@pytest.mark.parametrize("name", ["litellm", "langchain", "instructor", "pydantic_ai"])
def test_frameworks(tiny: Running, scripted: Running, name: str) -> None:
    command = [sys.executable, "-m", "support.frameworks", name, scripted.url, tiny.url]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("form", ["openai-chat", "open-responses", "anthropic"])
def test_llm_comply(tiny: Running, form: str) -> None:
    command = [
        sys.executable,
        "-m",
        "llm_comply.cli",
        "-u",
        tiny.url + "/v1",
        "-k",
        "any",
        "-m",
        "tiny-gemma4",
    ]
    done = subprocess.run([*command, "--format", form, "--json"], capture_output=True, text=True, timeout=300)
    results = json.loads(done.stdout)
    results = results["results"] if isinstance(results, dict) else results
    failed = [r for r in results if r.get("status") not in ("passed", "skipped")]
    assert len(results) >= 8 and not failed, failed
