"""What `make demo` shows: the official client, a streamed answer, a picture and a sound understood."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import OpenAI
from PIL import Image, ImageDraw, ImageFont

MODEL, SEER = "smollm2-135m-instruct", "tiny-gemma4"
QUESTION = "What is the capital of France, and what is it known for? Answer in two sentences."
SPOKEN = Path(__file__).parents[1] / "benchmarks" / "spoken" / "7-en-gb+f3-145-42.flac"
READY = re.compile(r"serves (\S+) at (\S+)/v1")


def main() -> int:
    ingle = str(Path(sys.executable).with_name("ingle"))
    if subprocess.run([ingle, "pull", MODEL], check=False).returncode != 0:
        return 1
    return served(ingle, MODEL, ask) or served(ingle, SEER, show)


def served(ingle: str, model: str, work: Callable[[OpenAI], None]) -> int:
    """Start a server for `model`, do the work, stop it. The server's exit code."""
    server = subprocess.Popen([ingle, "serve", model, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()  # the ready line, or nothing if the server could not start
        found = READY.search(line)
        if found is None:
            print(f"the server did not start: {line!r}", file=sys.stderr)
            return 1
        print(line.strip())
        work(OpenAI(base_url=found[2] + "/v1", api_key="none"))
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    print(f"The server stopped (exit code {code}).\n")
    return code


def ask(client: OpenAI) -> None:
    print(f"\n> {QUESTION}")
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


def show(client: OpenAI) -> None:
    """A model of 2.5 MB that comes with Ingle, to try media without a download."""
    image = Image.new("RGB", (192, 192), (20, 10, 30))
    font = ImageFont.load_default(160)
    ImageDraw.Draw(image).text((96, 96), "4", fill=(250, 215, 50), font=font, anchor="mm")
    png = io.BytesIO()
    image.save(png, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    spoken = base64.b64encode(SPOKEN.read_bytes()).decode()
    sound = {"type": "input_audio", "input_audio": {"data": spoken, "format": "flac"}}
    answer(client, "a picture of a yellow 4", picture, "Which digit is shown?")
    answer(client, 'a voice that says "seven"', sound, "Which digit is spoken?")


def answer(client: OpenAI, about: str, part: Any, question: str) -> None:
    got = client.chat.completions.create(
        model=SEER,
        messages=[{"role": "user", "content": [part, {"type": "text", "text": question}]}],
        max_tokens=8,
        temperature=0,
    )
    print(f"\n> [{about}] {question}\n{got.choices[0].message.content}")


if __name__ == "__main__":
    raise SystemExit(main())
