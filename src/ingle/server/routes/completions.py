"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingle.server import sse
from ingle.server.dialects import openai_completions as dialect
from ingle.server.routes.answers import collect, stream
from ingle.server.sse import EventStreamResponse, until_disconnect
from ingle.server.state import client_of, request_id_of, state_of
from ingle.service.completions import encode_prompts, start_completion


async def completions(request: Request) -> Response:
    state = state_of(request)
    state.refuse_if_draining()
    wanted = dialect.parse(await request.body(), state.count_unknown)
    model = state.model(wanted.model)
    options = replace(dialect.options(wanted, model, state.config), cache_key=client_of(request))
    prompts = await until_disconnect(
        request.receive, encode_prompts(model, dialect.prompts(wanted), state.media, request_id_of(request))
    )
    generation = start_completion(model, prompts, options)
    render = dialect.CompletionRenderer(model.name, logprobs=wanted.logprobs is not None)
    # An echoed prompt is the first text of each of its choices.
    echoes = [model.tokenizer.decode(p.ids) if wanted.echo else "" for p in prompts for _ in range(options.n)]
    if not wanted.stream:
        done = await until_disconnect(request.receive, collect(state, generation, len(echoes)))
        choices = [
            render.choice(i, echo + "".join(c.text), c.tokens, c.reason)
            for i, (echo, c) in enumerate(zip(echoes, done, strict=True))
        ]
        body = msgspec.json.encode(render.body(choices, generation.usage))
        return Response(body, media_type="application/json")
    with_usage = wanted.stream_options is not None and wanted.stream_options.include_usage
    return EventStreamResponse(
        stream(
            state,
            generation,
            first=[sse.event(render.body([render.choice(i, e)])) for i, e in enumerate(echoes) if e],
            delta=lambda e: sse.event(render.body([render.choice(e.index, e.text, e.tokens)])),
            finish=lambda e: sse.event(render.body([render.choice(e.index, "", reason=e.reason)])),
            last=lambda: [sse.event(render.body([], generation.usage))] if with_usage else [],
        )
    )
