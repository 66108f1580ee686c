"""Measure what drafts are worth: Ingle with and without, and llama.cpp's server with and without.

    python benchmarks/speculation.py [--rounds N] [--llama-dir DIR] [--no-llama] [--json]

SmolLM2 (Q4_1) edits texts and code greedily with n-gram look-up, and writes freely at temperature 1;
`tiny-gemma4` counts, copies and thinks with its assistant, one question after the other and sixteen at a time
(as one is answered the next one comes). Runs with and without drafts take turns; ratios are medians of
each round's. Tokens are compared as well: they must be the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tiny_world as world
from peers import LlamaCpp, say

from ingle import compose
from ingle.config import EngineConfig
from ingle.contracts.request import EngineEvent, Finished, Request, SamplingParams, TokensCommitted
from ingle.drafters import DrafterChoice
from ingle.env import Environment
from ingle.kernels import native
from ingle.service.models import TextModel
from ingle.weights.catalog import CATALOG
from ingle.weights.sources import resolve

TEXT = """\
The old lighthouse stands on a cliff above the bay. Its keeper, Mr. Harlan, climbs the one hundred and twelve
steps every evening to light the lamp. In winter the wind is so strong that he ties a rope around his waist.
Ships from the north pass the bay at night, and their captains know the lamp by its colour. Last year a storm
broke two windows, and the village collected money to repair them. The children of the village visit him on
Sundays and bring him bread and apples.""".replace("\n", " ")
CODE = """\
def total_price(items, rate):
    price = 0.0
    for item in items:
        price = price + item.price * item.count
    tax = price * rate
    print("price", price, "tax", tax)
    return price + tax

def average_price(items):
    price = 0.0
    for item in items:
        price = price + item.price
    print("price", price)
    return price / len(items)
"""
EDITS = {
    "spelling": "Correct the spelling of this text and change nothing else:\n\n"
    + TEXT.replace("keeper", "keaper").replace("captains", "captians"),
    "name": f"Rewrite this text with the name Harlan replaced by Miller. Change nothing else.\n\n{TEXT}",
    "code": "Add a comment to the first line of this code. Give the whole code.\n\n"
    + f"```python\n{CODE}```",
}
FREE = (
    "Write a long story about a lighthouse keeper and a storm.",
    "Explain to a child why the sky is blue.",
    "What should I think of before I buy a bicycle?",
)
LLAMA_KINDS = {
    "llama.cpp": (),
    "llama.cpp ngram-simple": ("--spec-type", "ngram-simple"),
    "llama.cpp ngram-simple 5/16": (
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "5", "--spec-ngram-simple-size-m", "16"),
    ),
}


class Run:
    """Requests of one measurement: `streams` at a time, the next one comes when one is done."""

    def __init__(self, model: TextModel, requests: Sequence[Request], streams: int) -> None:
        self.tokens: dict[str, list[int]] = {request.id: [] for request in requests}
        self.finished: list[Finished] = []
        self._arrivals: dict[str, list[float]] = {request.id: [] for request in requests}
        self._engine, self._todo = model.engine, iter(requests)
        self._done, self._count = threading.Event(), len(requests)
        started = time.perf_counter()
        for request in itertools.islice(self._todo, streams):
            self._engine.submit(request, self)
        self._done.wait()
        self.seconds = time.perf_counter() - started

    def deliver(self, events: list[tuple[str, EngineEvent]]) -> None:
        now = time.perf_counter()
        for id, event in events:
            if isinstance(event, TokensCommitted):
                self.tokens[id] += event.tokens
                self._arrivals[id] += [now] * len(event.tokens)
            if isinstance(event, Finished):
                self.finished.append(event)
                if (following := next(self._todo, None)) is not None:
                    self._engine.submit(following, self)
                elif len(self.finished) == self._count:
                    self._done.set()

    @property
    def rate(self) -> float:
        """Tokens per second of all streams, prompts included in the time."""
        return sum(map(len, self.tokens.values())) / self.seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second behind each answer's first step: for one stream."""
        behind = [
            (sum(t > times[0] for t in times), times[-1] - times[0]) for times in self._arrivals.values()
        ]
        return sum(n for n, _ in behind) / sum(s for _, s in behind)


class Pair:
    """One model with drafts and without."""

    def __init__(self, path: Path, drafter: DrafterChoice) -> None:
        config = EngineConfig(prompt_cache_bytes=0)
        self._loaded = [compose.load(path, name="m", config=config, drafter=d) for d in ("none", drafter)]
        self.plain, self.drafted = (TextModel.open("m", one.text, one.engine) for one in self._loaded)
        self._numbers = itertools.count()

    def requests(
        self, texts: Sequence[str], sampling: SamplingParams, thinks: Sequence[bool] = ()
    ) -> list[Request]:
        out = []
        for i, text in enumerate(texts):
            flags = {"enable_thinking": True} if thinks and thinks[i] else {}
            ids = chat_ids(self.plain, text, **flags)
            out.append(Request(id=f"r{next(self._numbers)}", prompt=tuple(ids), sampling=sampling))
        return out

    def close(self) -> None:
        for one in self._loaded:
            one.engine.close()


def chat_ids(model: TextModel, text: str, **flags: bool) -> list[int]:
    prompt = model.template.render([{"role": "user", "content": text}], extra=flags)
    return model.tokenizer.encode(prompt, special=True)


class Result:
    def __init__(self, name: str) -> None:
        self.name, self.rates, self.drafted, self.accepted = name, dict[str, list[float]](), 0, 0

    def add(self, who: str, rate: float) -> None:
        self.rates.setdefault(who, []).append(rate)

    def line(self) -> dict[str, object]:
        plain, drafted = self.rates["plain"], self.rates["drafted"]
        ratios = [b / a for a, b in zip(plain, drafted, strict=True)]
        return {
            "case": self.name,
            **{
                "drafted_rate" if who == "drafted" else who: round(statistics.median(values), 1)
                for who, values in self.rates.items()
            },
            "ratio": round(statistics.median(ratios), 2),
            "least": round(min(ratios), 2),
            "most": round(max(ratios), 2),
            "drafted": self.drafted,
            "accepted": self.accepted,
        }


def measure(pair: Pair, result: Result, requests: Sequence[Request], streams: int, first: int) -> None:
    """One round: both, the one or the other first."""
    runs: dict[str, Run] = {}
    both = [("plain", pair.plain), ("drafted", pair.drafted)]
    for who, model in both[:: 1 if first % 2 else -1]:
        runs[who] = Run(model, requests, streams)
        result.add(who, runs[who].decode_rate if streams == 1 else runs[who].rate)
    if runs["plain"].tokens != runs["drafted"].tokens:
        raise SystemExit(f"{result.name}: drafts changed an answer")
    result.drafted += sum(f.drafted for f in runs["drafted"].finished)
    result.accepted += sum(f.accepted for f in runs["drafted"].finished)


class LlamaServer:
    """llama.cpp's server with one kind of speculation; rates are its own, prompts not included."""

    def __init__(self, llama: LlamaCpp, model: Path, threads: int, options: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = (
            llama.folder / "llama-server",
            "-m",
            model,
            "-t",
            str(threads),
            "--port",
            str(port),
            "-np",
            "1",
            "-c",
            "4096",
        )
        self._process = subprocess.Popen(
            [str(part) for part in (*command, *options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=2)
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("llama-server does not come up")

    def rate(self, ids: Sequence[int], tokens: int, temperature: float, seed: int) -> float:
        body = {
            "prompt": list(ids),
            "n_predict": tokens,
            "temperature": temperature,
            "seed": seed,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["timings"]["predicted_per_second"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def smollm2(rounds: int, llama: LlamaCpp | None, threads: int) -> list[Result]:
    path = resolve("smollm2-135m-instruct", Environment.read().store())
    pair, results = Pair(path, "ngram"), []
    ends = pair.plain.tokenizer.eos_token_ids
    servers = {
        kind: LlamaServer(llama, path, threads, options) for kind, options in LLAMA_KINDS.items() if llama
    }
    try:
        for name, text in EDITS.items():
            results.append(result := Result(f"SmolLM2 editing: {name}"))
            sampling = SamplingParams(temperature=0.0, max_tokens=220, stop_token_ids=ends)
            for number in range(rounds):
                requests = pair.requests([text], sampling)
                measure(pair, result, requests, 1, number)
                for kind, server in servers.items():
                    result.add(kind, server.rate(requests[0].prompt, 220, 0.0, 0))
            say(str(result.line()))
        for streams in (1, 4):
            results.append(result := Result(f"SmolLM2 free text, {streams} at a time"))
            for number in range(rounds):
                sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=128)
                measure(
                    pair, result, pair.requests(FREE * (1 if streams == 1 else 2), sampling), streams, number
                )
                for kind, server in servers.items():
                    if streams == 1:
                        ids = chat_ids(pair.plain, FREE[number % 3])
                        result.add(kind, server.rate(ids, 128, 1.0, number))
            say(str(result.line()))
    finally:
        for server in servers.values():
            server.close()
        pair.close()
    return results


def tiny_gemma4(rounds: int) -> list[Result]:
    store = Environment.read().store()
    target, own = (resolve(name, store) for name in ("tiny-gemma4", CATALOG["tiny-gemma4"].drafter or ""))
    pair, results = Pair(target, own), []
    ends = pair.plain.tokenizer.eos_token_ids
    sampling = SamplingParams(temperature=0.0, max_tokens=128, stop_token_ids=ends)
    for streams, count in ((1, 48), (16, 256)):
        results.append(result := Result(f"tiny-gemma4 with its assistant, {streams} at a time"))
        for number in range(rounds):
            rng = np.random.default_rng(number)
            asked = [q for q in (world.text_task(rng) for _ in range(3 * count)) if q.call is None][:count]
            requests = pair.requests([q.text for q in asked], sampling, [q.thinking for q in asked])
            measure(pair, result, requests, streams, number)
        say(str(result.line()))
    pair.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--llama-dir", type=Path, metavar="DIR", help="a llama.cpp build that is already there"
    )
    parser.add_argument("--no-llama", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    native.configure()
    threads = native.cpu.threads()
    llama = None if args.no_llama else LlamaCpp(args.llama_dir, threads)
    lines = [r.line() for r in (*tiny_gemma4(args.rounds), *smollm2(args.rounds, llama, threads))]
    if args.json:
        print(json.dumps(lines))
        return
    for line in lines:
        print("  ".join(f"{key} {value}" for key, value in line.items()))


if __name__ == "__main__":
    main()
