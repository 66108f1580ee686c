"""Put a server under load, and see that nothing breaks, nothing leaks and no answer changes.

    python benchmarks/load.py [--minutes 5] [--streams 64] [--json] [--llama-dir DIR] [--no-peer]

1. Soak: `--streams` clients send requests for `--minutes`, and hang up on every fifth in the middle. Every
   answer, and every part of one, must be what the request got alone.
2. Rates of 1, 4, 8, 16 and 32 streams of 128 tokens, Ingle and llama.cpp's server in turn.
3. The longest time without a text for any of seven running streams while a prompt of 4,000 tokens is
   computed.
4. The time to the first token of the second turn of a conversation of 2,000 tokens, beside the first's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import LlamaCpp, say

from ingle.env import Environment
from ingle.weights.sources import resolve

MODEL = "smollm2-135m-instruct"
COUNTS = (1, 4, 8, 16, 32)
WORDS = ("river", "stone", "market", "winter", "paper", "engine", "garden", "signal", "copper", "window")


@dataclass(slots=True)
class Answer:
    text: str = ""
    tokens: int = 0
    arrivals: list[float] = field(default_factory=list[float])
    error: str | None = None


class Client:
    """Streams /v1/completions of one server over plain sockets: cheap enough to share the machine with it."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def complete(self, body: dict[str, Any], *, hang_up_after: int | None = None) -> Answer:
        """The whole answer, or its beginning: the client then closes the connection."""
        answer = Answer()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + data)
            status = (await reader.readline()).split()
            if len(status) < 2 or status[1] != b"200":
                answer.error = (await reader.read(2000)).decode(errors="replace")
                return answer
            async for line in reader:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    answer.error = str(event["error"])
                if event.get("usage"):
                    answer.tokens = event["usage"]["completion_tokens"]
                if event.get("choices") and event["choices"][0].get("text"):
                    answer.text += event["choices"][0]["text"]
                    answer.arrivals.append(time.perf_counter())
                    if hang_up_after is not None and len(answer.arrivals) >= hang_up_after:
                        return answer
        finally:
            writer.close()
        return answer

    async def get(self, path: str) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        data = await reader.read()
        writer.close()
        return json.loads(data.split(b"\r\n\r\n", 1)[1])


@asynccontextmanager
async def ingle(rows: int) -> AsyncIterator[tuple[Client, int]]:
    """`ingle serve` on a free port: (client, process id)."""
    command = (
        sys.executable,
        "-m",
        "ingle.cli",
        "serve",
        MODEL,
        "--port",
        "0",
        "--drafter",
        "none",
        "--max-rows",
        str(rows),
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
        yield Client(port), process.pid
    finally:
        process.terminate()
        process.wait(30)


@asynccontextmanager
async def llama_server(llama: LlamaCpp, model: Path, rows: int) -> AsyncIterator[Client]:
    port = 18473
    process = llama.serve(model, port, rows)
    try:
        client = Client(port)
        for _ in range(600):
            try:
                if (await client.get("/health")).get("status") == "ok":
                    break
            except (OSError, ValueError, IndexError):
                pass
            await asyncio.sleep(0.1)
        yield client
    finally:
        process.terminate()
        process.wait(30)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def made_up(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Requests of many kinds; some begin alike."""
    shared = words(rng, 120)
    out: list[dict[str, Any]] = []
    for number in range(count):
        prompt = (shared + " " if number % 3 == 0 else "") + words(rng, rng.choice((3, 20, 90, 200)))
        out.append(
            {
                "model": MODEL,
                "prompt": prompt,
                "seed": number,
                "temperature": rng.choice((0.0, 0.7)),
                "max_tokens": rng.choice((8, 24, 64)),
                "ignore_eos": True,
            }
        )
    return out


def memory_and_files(pid: int) -> tuple[float, int]:
    """Resident MiB and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


async def soak(client: Client, pid: int, seconds: float, streams: int) -> dict[str, Any]:
    rng = random.Random(1)
    jobs = made_up(rng, 48)
    say("soak: what each request gets alone")
    alone = [await client.complete(job) for job in jobs]
    assert not any(answer.error for answer in alone), [a.error for a in alone if a.error]
    begun, ends = memory_and_files(pid), time.monotonic() + seconds
    counts = {"answers": 0, "hung_up": 0, "errors": 0, "different": 0, "tokens": 0}
    say(f"soak: {streams} streams for {seconds:.0f} s")

    async def work(number: int) -> None:
        own = random.Random(number)
        while time.monotonic() < ends:
            job = own.randrange(len(jobs))
            cut = own.randint(1, 10) if own.random() < 0.2 else None
            answer = await client.complete(jobs[job], hang_up_after=cut)
            counts["answers" if cut is None else "hung_up"] += 1
            counts["tokens"] += answer.tokens if cut is None else len(answer.arrivals)
            if answer.error:
                counts["errors"] += 1
                say(answer.error)
            else:
                expected = alone[job].text
                same = answer.text == expected or (cut is not None and expected.startswith(answer.text))
                counts["different"] += not same

    await asyncio.gather(*(work(number) for number in range(streams)))
    for _ in range(100):
        state = (await client.get("/v1/engine"))[MODEL]
        if state["running"] == 0 and state["waiting"] == 0:
            break
        await asyncio.sleep(0.05)
    after = memory_and_files(pid)
    return {
        **counts,
        "seconds": seconds,
        "streams": streams,
        "kv_bytes_after": state["kv_bytes"],
        "rss_mb": [round(begun[0]), round(after[0])],
        "open_files": [begun[1], after[1]],
        "paused": state["paused"],
        "cached_tokens": state["cached_tokens"],
        "predicted_over_measured": round(state["predicted_bytes"] / max(1, state["peak_bytes"]), 3),
    }


async def rate(client: Client, streams: int, tokens: int) -> float:
    """Tokens per second of all streams together, prompts of some 30 tokens included."""
    rng = random.Random(streams)
    body = {"model": MODEL, "temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(client.complete({**body, "prompt": words(rng, 25)}) for _ in range(streams))
    )
    seconds = time.perf_counter() - started
    assert not any(a.error for a in answers), [a.error for a in answers if a.error]
    return sum(a.tokens for a in answers) / seconds


async def worst_gap(client: Client, streams: int, prompt_words: int) -> dict[str, float]:
    """Running streams beside a long prompt: their longest gap, and the prompt's time to its first token."""
    rng = random.Random(5)
    body = {"model": MODEL, "temperature": 0.0, "ignore_eos": True}
    started = time.perf_counter()
    alone = await client.complete({**body, "prompt": words(rng, prompt_words), "max_tokens": 1})
    assert alone.error is None, alone.error
    alone_ms = (alone.arrivals[0] - started) * 1e3
    running = [
        asyncio.create_task(client.complete({**body, "prompt": words(rng, 25), "max_tokens": 700}))
        for _ in range(streams)
    ]
    await asyncio.sleep(1.0)
    started = time.perf_counter()
    long = await client.complete({**body, "prompt": words(rng, prompt_words), "max_tokens": 2})
    assert long.error is None, long.error
    first = long.arrivals[0]
    answers = await asyncio.gather(*running)
    # A token may have no text of its own yet, so no stream alone shows every step; all together do.
    arrivals = sorted(at for answer in answers for at in answer.arrivals)
    gaps = [b - a for a, b in itertools.pairwise(arrivals) if b >= started and a <= first]
    return {
        "worst_gap_ms": round(max(gaps) * 1e3, 1),
        "first_token_ms": round((first - started) * 1e3),
        "alone_ms": round(alone_ms),
    }


async def second_turn(client: Client, prompt_words: int) -> dict[str, float]:
    """Times to first token in ms of a long first turn and of the turn behind it."""
    rng = random.Random(9)
    body = {"model": MODEL, "temperature": 0.0, "ignore_eos": True, "max_tokens": 32}
    prompt, waits = words(rng, prompt_words), []
    for _ in range(2):
        started = time.perf_counter()
        answer = await client.complete({**body, "prompt": prompt})
        assert answer.error is None, answer.error
        waits.append((answer.arrivals[0] - started) * 1e3)
        prompt += answer.text + " " + words(rng, 10)
    first, second = waits
    return {"first_ms": round(first), "second_ms": round(second), "ratio": round(first / second, 1)}


async def run(args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    async with ingle(rows=args.rows) as (client, pid):
        result["soak"] = await soak(client, pid, args.minutes * 60, args.streams)
    model = resolve(MODEL, Environment.read().store())
    peer = None if args.no_peer else LlamaCpp(args.llama_dir, len(os.sched_getaffinity(0)))
    rates: dict[str, dict[int, list[float]]] = {
        name: {n: [] for n in COUNTS} for name in ("ingle", "llama.cpp")
    }
    for number in range(args.rounds):
        say(f"rates: round {number + 1} of {args.rounds}")
        async with ingle(rows=32) as (client, _):
            await rate(client, 1, 16)
            for count in COUNTS:
                rates["ingle"][count].append(await rate(client, count, 128))
            result.setdefault("long_prompt", []).append(await worst_gap(client, 7, 3000))
            result.setdefault("second_turn", []).append(await second_turn(client, 1500))
        if peer is not None:
            async with llama_server(peer, model, 32) as client:
                await rate(client, 1, 16)
                for count in COUNTS:
                    rates["llama.cpp"][count].append(await rate(client, count, 128))
                result.setdefault("long_prompt_llama.cpp", []).append(await worst_gap(client, 7, 3000))
    for name, of in rates.items():
        if any(of.values()):
            result[f"rate_{name}"] = {n: round(statistics.median(values), 1) for n, values in of.items()}
    if peer is not None:
        pairs = {n: zip(rates["ingle"][n], rates["llama.cpp"][n], strict=True) for n in COUNTS}
        result["rate_ratio"] = {n: round(statistics.median(a / b for a, b in p), 2) for n, p in pairs.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="sequences that run at once in the soak (16)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--llama-dir", type=Path, metavar="DIR", help="a llama.cpp build that is there")
    parser.add_argument("--no-peer", action="store_true", help="Ingle alone")
    args = parser.parse_args()
    result = asyncio.run(run(args))
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {value}")
    soaked = result["soak"]
    if soaked["errors"] or soaked["different"] or soaked["kv_bytes_after"]:
        raise SystemExit("the soak failed")


if __name__ == "__main__":
    main()
