"""`ingle bench`: how fast this machine runs a model."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

from ingle.cli.common import add_model_arguments, load, open_text_model
from ingle.cli.measure import Meter, median, peak_rss_mb
from ingle.config import ServerConfig
from ingle.errors import EngineError
from ingle.service.model_pool import ModelPool
from ingle.service.models import TextModel

_UNITS = {"ttft_ms": "ms, 512-token prompt", "peak_rss_mb": "MiB"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(drafter="none")  # made-up prompts repeat themselves as no text does
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="runs of each figure; the median counts (3)"
    )


def run(args: argparse.Namespace) -> int:
    loaded = load(args)
    try:
        model = open_text_model(loaded)
        figures = measure(model, max(1, args.repeats))
    finally:
        loaded.engine.close()
    if args.json:
        print(json.dumps({"model": loaded.name, "description": loaded.description, **figures}))
        return 0
    print(f"{loaded.name}: {loaded.description}")
    for name, value in figures.items():
        print(f"  {name:18} {value:10.1f}  {_UNITS.get(name, 'tokens/s')}")
    return 0


def measure(model: TextModel, repeats: int) -> dict[str, float]:
    """Medians over `repeats` runs on an idle engine, after one warm-up."""
    meter = Meter(model.engine)
    meter.decode(1, 8, 8)
    prefills = sorted(meter.prefill(512) for _ in range(repeats))
    rate, ttft = prefills[len(prefills) // 2]
    figures = {"prefill_tok_s": rate, "ttft_ms": ttft}
    for streams in (1, 4, 8):
        name = "decode_tok_s" if streams == 1 else f"decode_tok_s_{streams}"
        figures[name] = median(lambda streams=streams: meter.decode(streams, 128, 32), repeats)
    figures["http_decode_tok_s"] = http_rate(model, repeats)
    figures["peak_rss_mb"] = peak_rss_mb()
    return {name: round(value, 2) for name, value in figures.items()}


def http_rate(model: TextModel, repeats: int) -> float:
    """One stream of 128 tokens through the real server on loopback."""
    from ingle.server.app import create_app
    from ingle.server.run import Server

    config = ServerConfig(port=0)
    ready = threading.Event()
    server = Server(create_app(ModelPool.of(model), config), config, lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([server.socket])), daemon=True)
    thread.start()
    ready.wait()
    try:
        return median(lambda: _one_stream(server.url, model.name), repeats)
    finally:
        server.should_exit = True
        thread.join()


def _one_stream(url: str, name: str) -> float:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    body = {
        "model": name,
        "prompt": [1] * 32,
        "max_tokens": 128,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise EngineError(f"the server answered {answer.status}: {answer.read(500)!r}")
    first = last = 0.0
    for line in answer:
        if line.startswith(b"data: {"):
            last = time.perf_counter()
            first = first or last
    connection.close()
    return 127 / (last - first)
