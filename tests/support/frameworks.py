"""Frameworks as people have them, unchanged: `python -m support.frameworks NAME SCRIPTED_URL TINY_URL`.

They leave event loops and connections to the garbage collector, so each runs in a process of its own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, SecretStr

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices

HI: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": PARAMETERS},
}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    age: int
    tall: bool


@dataclass(frozen=True)
class Server:
    url: str

    def client(self) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=0)


def litellm(scripted: Server, tiny: Server) -> None:
    import litellm as library

    library.suppress_debug_info = True
    there: dict[str, Any] = {"api_base": scripted.url + "/v1", "api_key": "any"}
    parts: Any = library.completion("openai/scripted", HI, tools=[TOOL], stream=True, **there)
    whole: Any = library.stream_chunk_builder(list(parts))
    assert whole.choices[0].message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    shaped: Any = library.completion(
        "openai/tiny-gemma4", HI, response_format=Person, api_base=tiny.url + "/v1", api_key="any", seed=3
    )
    Person.model_validate_json(shaped.choices[0].message.content)


def langchain(scripted: Server, tiny: Server) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    chat: Any = ChatOpenAI(
        model="scripted", base_url=scripted.url + "/v1", api_key=SecretStr("any")
    ).bind_tools([weather])
    asked = [HumanMessage("Weather?")]
    called: Any = chat.invoke(asked)
    assert called.tool_calls[0]["args"] == {"city": "Paris"}
    result = weather.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage)
    streamed = "".join(str(part.content) for part in chat.stream([*asked, called, result]))
    assert streamed == "It is sunny in Paris."
    shaped: Any = ChatOpenAI(model="tiny-gemma4", base_url=tiny.url + "/v1", api_key=SecretStr("any"), seed=4)
    for method in ("json_schema", "function_calling"):
        assert isinstance(shaped.with_structured_output(Person, method=method).invoke("Who?"), Person)


def instructor(scripted: Server, tiny: Server) -> None:
    import instructor as library

    for mode in (library.Mode.TOOLS, library.Mode.JSON_SCHEMA):
        client: Any = library.from_openai(tiny.client(), mode=mode)
        made = client.chat.completions.create(
            model="tiny-gemma4", messages=HI, response_model=Person, max_retries=0, seed=1
        )
        assert isinstance(made, Person)


def pydantic_ai(scripted: Server, tiny: Server) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def loop(model: Any) -> list[str]:
        agent = Agent(model)
        asked: list[str] = []

        @agent.tool_plain
        def weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return f"sunny in {city}"

        assert agent.run_sync("What is the weather in Paris?").output == "It is sunny in Paris."
        return asked

    provider = OpenAIProvider(base_url=scripted.url + "/v1", api_key="any")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        assert loop(kind("scripted", provider=provider)) == ["Paris"]
    real: Any = OpenAIChatModel(
        "tiny-gemma4", provider=OpenAIProvider(base_url=tiny.url + "/v1", api_key="any")
    )
    assert isinstance(Agent(real, output_type=Person, retries=0).run_sync("Who?").output, Person)


if __name__ == "__main__":
    _, name, scripted_url, tiny_url = sys.argv
    {f.__name__: f for f in (litellm, langchain, instructor, pydantic_ai)}[name](
        Server(scripted_url), Server(tiny_url)
    )
