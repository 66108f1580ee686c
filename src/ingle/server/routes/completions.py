"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from ingle.server.answers import collect, stream
from ingle.server.dialects import openai_completions as dialect
from ingle.server.sse import until_disconnect
from ingle.server.state import client_of, event_stream, request_id_of, state_of
from ingle.service.completions import encode_prompts, start_completion


async def completions(request: Request) -> Response:
    state = state_of(request)
    wanted = dialect.parse(await state.body(request), state.count_unknown)
    model = await state.model(request, wanted.model)
    options = replace(dialect.options(wanted, model, state.config), cache_key=client_of(request))
    prompts = await until_disconnect(
        request.receive, encode_prompts(model, dialect.prompts(wanted), state.media, request_id_of(request))
    )
    generation = await start_completion(model, prompts, options, dialect.output(wanted))
    # An echoed prompt is the first text of each of its choices.
    echoes = [model.tokenizer.decode(p.ids) if wanted.echo else "" for p in prompts for _ in range(options.n)]
    with_usage = wanted.stream_options is not None and wanted.stream_options.include_usage
    render = dialect.CompletionRenderer(
        model.name, generation, echoes, logprobs=wanted.logprobs is not None, with_usage=with_usage
    )
    if not wanted.stream:
        done = await until_disconnect(request.receive, collect(request, generation))
        return Response(render.answer(done), media_type="application/json")
    return event_stream(request, stream(request, generation, render))
