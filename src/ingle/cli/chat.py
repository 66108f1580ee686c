"""`ingle chat`: a conversation in the terminal, without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from ingle.cli.common import add_model_arguments, load, open_text_model
from ingle.errors import RequestError
from ingle.service.chat import ChatTurn, start_chat
from ingle.service.generation import GenerationOptions, ReasoningDelta, TextDelta
from ingle.service.models import TextModel

_HELP = "/reset forgets the conversation, /exit ends it (so does end of input), Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="answer TEXT and exit")
    parser.add_argument("--system", metavar="TEXT", help="instructions for the model")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (what the context holds)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="N", help="makes sampled answers repeatable")


def run(args: argparse.Namespace) -> int:
    loaded = load(args)
    try:
        model = open_text_model(loaded)
        sampling = {} if args.temperature is None else {"temperature": args.temperature}
        options = GenerationOptions(max_tokens=args.max_tokens, seed=args.seed, sampling=sampling)
        history = [{"role": "system", "content": args.system}] if args.system else []
        if args.prompt is not None:
            history.append({"role": "user", "content": args.prompt})
            asyncio.run(_answer(model, history, options))
            return 0
        return _converse(model, history, options)
    finally:
        loaded.engine.close()


def _converse(model: TextModel, history: list[dict[str, str]], options: GenerationOptions) -> int:
    person = sys.stdin.isatty()
    if person:
        print(f"{model.name} ({model.engine.info.backend}). {_HELP}.", file=sys.stderr)
    start = list(history)
    while True:
        try:
            line = input("> " if person else "")
        except EOFError:
            return 0
        command = line.strip()
        if command == "/exit":
            return 0
        if command == "/help":
            print(_HELP, file=sys.stderr)
        elif command == "/reset":
            history[:] = start
        elif command:
            history.append({"role": "user", "content": line})
            try:
                answer = asyncio.run(_answer(model, history, options))
                history.append({"role": "assistant", "content": answer})
            except KeyboardInterrupt:
                history.pop()
                print("\n(stopped)", file=sys.stderr)
            except RequestError as error:
                history.pop()
                print(f"ingle: error: {error}", file=sys.stderr)


async def _answer(model: TextModel, history: list[dict[str, str]], options: GenerationOptions) -> str:
    started = time.monotonic()
    generation = await start_chat(model, ChatTurn(messages=history), options)
    first = None
    parts: list[str] = []
    async for event in generation.events():
        if isinstance(event, TextDelta | ReasoningDelta):
            first = first or time.monotonic()
            print(event.text, end="", flush=True)
            if isinstance(event, TextDelta):
                parts.append(event.text)
        else:
            print()
    ended = time.monotonic()
    tokens = generation.usage.completion_tokens
    rate = (tokens - 1) / (ended - first) if first and tokens > 1 else 0.0
    wait = 1e3 * ((first or ended) - started)
    print(f"[{tokens} tokens, first after {wait:.0f} ms, {rate:.1f} tokens/s]", file=sys.stderr)
    return "".join(parts)
