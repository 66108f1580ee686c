"""What serving costs around the engine: 32 streams of 10,000 tokens from an engine that does nothing else.

    python benchmarks/sse.py [--rounds 5] [--streams 32] [--tokens 10000]

Beside it, in turns, a bare ASGI application under the same server (uvicorn) sends as many events of the same
bytes, made beforehand. Each server is a process of its own; a third one reads. Printed are medians: tokens/s,
the server's CPU time for a token, and the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from ingle.config import ServerConfig
from ingle.contracts.engine_stats import EngineStats
from ingle.contracts.request import Finished, Request, Started, Subscriber, TokensCommitted
from ingle.engine.handle import EngineInfo
from ingle.server.app import create_app
from ingle.service.model_pool import ModelPool
from ingle.service.models import TextModel
from ingle.weights.catalog import CATALOG, BundledModel
from ingle.weights.checkpoint import open_checkpoint

BODY = {"model": "fake", "messages": [{"role": "user", "content": "go"}], "stream": True, "ignore_eos": True}


class FakeEngine:
    """Gives every request one token a step, all of a step in one delivery, as fast as it can."""

    def __init__(self, vocab_size: int, streams: int) -> None:
        self.info = EngineInfo(vocab_size=vocab_size, context_length=10**6, backend="fake")
        self._streams, self._waiting = streams, list[tuple[Request, Subscriber]]()
        self._ready = threading.Condition()
        threading.Thread(target=self._main, daemon=True).start()

    def submit(self, request: Request, subscriber: Subscriber) -> None:
        with self._ready:
            self._waiting.append((request, subscriber))
            self._ready.notify()

    def cancel(self, request_id: str, detail: str = "") -> None:
        pass

    def stats(self) -> EngineStats:
        raise NotImplementedError

    def _main(self) -> None:
        while True:
            with self._ready:
                while len(self._waiting) < self._streams:
                    self._ready.wait()
                jobs, self._waiting = self._waiting, []
            subscriber = jobs[0][1]
            subscriber.deliver([(request.id, Started(0)) for request, _ in jobs])
            for number in range(jobs[0][0].sampling.max_tokens):
                token = 300 + number % 90
                subscriber.deliver([(request.id, TokensCommitted((token,))) for request, _ in jobs])
            subscriber.deliver([(request.id, Finished("length")) for request, _ in jobs])


def ingle(streams: int) -> Any:
    known = CATALOG["tiny-gemma4"]
    assert isinstance(known, BundledModel)
    text = open_checkpoint(known.path).text
    assert text is not None
    model = TextModel.open("fake", text, FakeEngine(512, streams))
    return create_app(ModelPool.of(model), ServerConfig())


def bare(streams: int) -> Any:
    events = [
        b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
        b'"created":1700000000,"model":"fake","choices":[{"index":0,"delta":{"content":"t%02d"},'
        b'"logprobs":null,"finish_reason":null}]}\n\n' % number
        for number in range(90)
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(body["max_tokens"]):
            await send({"type": "http.response.body", "body": events[number % 90], "more_body": True})
            if number % 16 == 0:
                await asyncio.sleep(0)  # the others' turn
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    return app


def serve(make: Callable[[int], Any], streams: int, sock: socket.socket, cpu: Any) -> None:
    config = uvicorn.Config(make(streams), log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)

    def report() -> None:
        while True:
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu.value = used.ru_utime + used.ru_stime
            time.sleep(0.02)

    threading.Thread(target=report, daemon=True).start()
    asyncio.run(server.serve([sock]))


async def read(port: int, tokens: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    body = json.dumps({**BODY, "max_tokens": tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    seen, tail = 0, b""
    while b"[DONE]" not in tail:
        data = await reader.read(2**18)
        if not data:
            raise ConnectionError("the stream broke off")
        seen += len(data)
        tail = tail[-20:] + data[-20:]
    writer.close()
    return seen


async def read_all(port: int, streams: int, tokens: int) -> None:
    await asyncio.gather(*(read(port, tokens) for _ in range(streams)))


def measure(make: Callable[[int], Any], streams: int, tokens: int) -> tuple[float, float]:
    """(tokens/s, microseconds of CPU for a token) of a fresh server."""
    context = multiprocessing.get_context("fork")
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    cpu = context.Value("d", 0.0)
    process = context.Process(target=serve, args=(make, streams, sock, cpu), daemon=True)
    process.start()
    port = sock.getsockname()[1]
    sock.close()
    time.sleep(1.5)
    asyncio.run(read_all(port, streams, 50))  # warm
    time.sleep(0.1)
    before, started = cpu.value, time.monotonic()
    asyncio.run(read_all(port, streams, tokens))
    seconds = time.monotonic() - started
    time.sleep(0.1)
    used = cpu.value - before
    process.kill()
    process.join()
    return streams * tokens / seconds, 1e6 * used / (streams * tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=10_000)
    args = parser.parse_args()
    got: dict[str, list[tuple[float, float]]] = {"ingle": [], "bare": []}
    for number in range(args.rounds):
        for name, make in (("ingle", ingle), ("bare", bare)):
            got[name].append(measure(make, args.streams, args.tokens))
            rate, cost = got[name][-1]
            print(
                f"round {number + 1}, {name}: {rate:,.0f} tokens/s, {cost:.2f} us of CPU a token", flush=True
            )
    for name, values in got.items():
        rate, cost = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"{name}: {rate:,.0f} tokens/s, {cost:.2f} us of CPU a token (medians)")
    ratios = [a[0] / b[0] for a, b in zip(got["ingle"], got["bare"], strict=True)]
    costs = [a[1] / b[1] for a, b in zip(got["ingle"], got["bare"], strict=True)]
    print(f"tokens/s to bare: {statistics.median(ratios):.2f}, CPU to bare: {statistics.median(costs):.2f}")


if __name__ == "__main__":
    main()
