"""What `make demo` shows: a server, the official client, a streamed answer and its speed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from openai import OpenAI

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France, and what is it known for? Answer in two sentences."
READY = re.compile(r"serves (\S+) at (\S+)/v1")


def main() -> int:
    ingle = str(Path(sys.executable).with_name("ingle"))
    if subprocess.run([ingle, "pull", MODEL], check=False).returncode != 0:
        return 1
    server = subprocess.Popen([ingle, "serve", MODEL, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()  # the ready line, or nothing if the server could not start
        found = READY.search(line)
        if found is None:
            print(f"the server did not start: {line!r}", file=sys.stderr)
            return 1
        print(line.strip())
        print(f"\n> {QUESTION}")
        ask(OpenAI(base_url=found[2] + "/v1", api_key="none"))
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    print(f"The server stopped (exit code {code}).")
    return code


def ask(client: OpenAI) -> None:
    started = time.perf_counter()
    first = 0.0
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=100,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    tokens = 0
    for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.perf_counter()
                print(choice.delta.content, end="", flush=True)
    seconds = time.perf_counter() - first
    print(
        f"\n\n{tokens} tokens, first after {1e3 * (first - started):.0f} ms, "
        f"then {(tokens - 1) / seconds:.1f} tokens/s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
