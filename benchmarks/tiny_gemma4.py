"""Ask `tiny-gemma4` about pictures, sounds, clips and texts that it never met, over HTTP.

    python benchmarks/tiny_gemma4.py [--n 200] [--json] [--model tiny-gemma4] [--streams 8]

Pictures, clips, tones and texts are drawn from seeds that its training did not use; digits are spoken by
voices that it did not hear. Prints how many answers of each kind are right.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import tiny_world as world
from openai import OpenAI

SPOKEN = Path(__file__).parent / "spoken"
DECLARATION = (  # of `world.WEATHER`
    '<|tool>declaration:get_weather{description:<|"|>Weather of a city<|"|>,parameters:{properties:{city:{'
    'description:<|"|>Name of the city<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],'
    'type:<|"|>OBJECT<|"|>}}<tool|>'
)
_READY = re.compile(r"serves (\S+) at (\S+)/v1")


def spoken() -> Callable[[int, np.random.Generator], world.Sound]:
    """Digits from the files, by their number."""
    pool: dict[int, list[world.Sound]] = {digit: [] for digit in range(10)}
    for path in sorted(SPOKEN.glob("*.flac")):
        with av.open(str(path)) as file:
            frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
        samples = np.concatenate(frames).astype(np.float32) / 32768
        pool[int(path.name[0])].append(samples)
    return lambda digit, rng: pool[digit][int(rng.integers(len(pool[digit])))]


def questions(count: int, seed: int = world.HELD_OUT) -> list[world.Question]:
    """`count` of each kind of media and of texts."""
    rng, say = np.random.default_rng(seed), spoken()
    out: list[world.Question] = []
    for i in range(count):
        picture = world.shape_picture if i % 3 == 0 else world.digit_picture
        out.append(picture(rng, world.size_of(rng)))
        out.append(world.tone(rng) if i % 4 == 0 else world.spoken_digit(rng, say))
        out.append(world.clip(rng, world.size_of(rng)))
        out.append(world.text_task(rng))
    return out


def parts(q: world.Question) -> list[dict[str, Any]]:
    """The question as a chat message's content."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    content: list[dict[str, Any]] = [{"type": "text", "text": q.text}]
    if q.picture is not None:
        url = f"data:image/png;base64,{encoded(world.png(q.picture))}"
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    if q.sound is not None:
        audio = {"data": encoded(world.wav(q.sound)), "format": "wav"}
        content.insert(0, {"type": "input_audio", "input_audio": audio})
    if q.frames:
        url = f"data:video/mp4;base64,{encoded(world.mp4(q.frames))}"
        content.insert(0, {"type": "video_url", "video_url": {"url": url}})
    return content


def ask(client: OpenAI, model: str, q: world.Question) -> str:
    if q.call or q.thinking:  # a prompt as the model's template writes it
        turn = f"<|turn>user\n{q.text}<turn|>\n<|turn>model\n"
        if q.call:
            turn = f"<|turn>system\n{DECLARATION}<turn|>\n{turn}<|channel>thought\n<channel|>"
        else:
            turn = f"<|turn>system\n<|think|>\n<turn|>\n{turn}"
        done = client.completions.create(model=model, prompt=turn, temperature=0, max_tokens=64)
        return done.choices[0].text.strip()
    got = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": parts(q)}],  # type: ignore[typeddict-item,list-item]
        temperature=0,
        max_tokens=64,
    )
    return (got.choices[0].message.content or "").strip()


def right(q: world.Question, answer: str) -> bool:
    if q.call:
        return f"call:{q.call['name']}" in answer and q.call["arguments"]["city"] in answer
    return answer == q.answer or (q.thinking and answer.endswith(q.answer))


def measure(url: str, model: str, count: int, streams: int) -> dict[str, Any]:
    asked = questions(count)
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300)
    with client, ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda q: ask(client, model, q), asked))
    results: dict[str, Any] = {}
    for kind, rows in itertools.groupby(
        sorted(zip(asked, answers, strict=True), key=lambda row: (row[0].kind, row[0].name)),
        key=lambda row: (row[0].kind, row[0].name),
    ):
        checked = [(q, answer, right(q, answer)) for q, answer in rows]
        results["/".join(kind)] = {
            "asked": len(checked),
            "right": sum(ok for *_, ok in checked),
            "wrong": [[q.answer, answer] for q, answer, ok in checked if not ok][:5],
        }
    for kind in ("image", "audio", "video", "text"):
        rows = [row for name, row in results.items() if name.startswith(kind + "/")]
        results[kind] = {"asked": sum(r["asked"] for r in rows), "right": sum(r["right"] for r in rows)}
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=200, help="questions of each kind")
    parser.add_argument("--model", default="tiny-gemma4")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ingle = str(Path(sys.executable).with_name("ingle"))
    server = subprocess.Popen(
        [ingle, "serve", options.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        found = _READY.search(server.stdout.readline())
        if found is None:
            return 1
        results = measure(found[2], found[1], options.n, options.streams)
    finally:
        server.terminate()
        server.wait(timeout=60)
    if options.json:
        print(json.dumps(results, indent=1))
        return 0
    for name, row in results.items():
        share = 100 * row["right"] / max(1, row["asked"])
        print(f"{name:20} {row['right']:4} of {row['asked']:4}  {share:5.1f} %")
        for wanted, answer in row.get("wrong", []):
            print(f"{'':22}{wanted!r} was answered {answer!r}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
