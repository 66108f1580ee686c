"""The small world of `tiny-gemma4`: pictures, sounds, clips and texts with one right answer each.

Everything is drawn from a seed. The training script draws from seeds below HELD_OUT, measurements from those
above it; spoken digits keep some voices for measurements alone.
"""

from __future__ import annotations

import io
import subprocess
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Picture: TypeAlias = npt.NDArray[np.uint8]  # [height, width, 3]
Sound: TypeAlias = npt.NDArray[np.float32]  # mono, 16 kHz
Kind: TypeAlias = Literal["image", "audio", "video", "text"]

HELD_OUT = 1_000_000
RATE = 16_000
COLOURS = {
    "red": (235, 60, 50), "green": (60, 200, 70), "blue": (80, 120, 255), "yellow": (250, 215, 50),
    "white": (245, 245, 245),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
TONES = {"low": (180.0, 320.0), "middle": (700.0, 1000.0), "high": (2200.0, 3400.0)}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES = (
    "en-us", "en-gb", "en-us+m1", "en-us+m2", "en-us+m3", "en-us+m4", "en-us+m5", "en-us+m7", "en-us+f1",
    "en-us+f2", "en-us+f4", "en-us+f5", "en-gb+m3", "en-gb+m1", "en-gb+f2", "en-gb+f4",
)  # fmt: skip
UNHEARD = ("en-us+m6", "en-gb+f3")  # kept for measurements
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Tokyo", "Berlin", "Madrid", "Vienna")
LETTERS = "abcdefghijklmnopqrstuvwxyz"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Question:
    kind: Kind
    name: str  # "shape", "spoken digit", ...
    text: str
    answer: str
    picture: Picture | None = None
    sound: Sound | None = None
    frames: tuple[Picture, ...] = ()
    thinking: bool = False
    call: Mapping[str, Any] | None = None  # the tool call that answers
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # what can be seen in each picture


def _noisy(image: Image.Image, rng: np.random.Generator) -> Picture:
    pixels = np.asarray(image, np.float32) + rng.normal(0, rng.uniform(0, 8), (*image.size[::-1], 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _dark(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    return Image.new("RGB", size, tuple(int(v) for v in rng.integers(0, 45, 3)))


def _draw(
    draw: ImageDraw.ImageDraw, shape: str, x: float, y: float, radius: float, colour: tuple[int, ...]
) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    elif shape == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=colour)
    else:
        thin = radius * 0.35
        draw.rectangle((x - radius, y - thin, x + radius, y + thin), fill=colour)
        draw.rectangle((x - thin, y - radius, x + thin, y + radius), fill=colour)


def size_of(rng: np.random.Generator) -> tuple[int, int]:
    """(width, height) in pixels: square, wide or tall."""
    return [(192, 192), (192, 192), (256, 192), (192, 256)][int(rng.integers(4))]


def shape_picture(rng: np.random.Generator, size: tuple[int, int]) -> Question:
    colour = str(rng.choice(list(COLOURS)))
    shape = str(rng.choice(SHAPES))
    image = _dark(rng, size)
    radius = rng.uniform(0.22, 0.4) * min(size)
    x, y = (rng.uniform(radius, side - radius) for side in size)
    _draw(ImageDraw.Draw(image), shape, x, y, radius, COLOURS[colour])
    picture = _noisy(image, rng)
    facts = {"shape": shape, "colour": colour}
    if rng.integers(2):
        return Question("image", "shape", "What shape is it?", shape, picture, facts=facts)
    return Question("image", "colour", "What colour is the shape?", colour, picture, facts=facts)


def digit_picture(rng: np.random.Generator, size: tuple[int, int]) -> Question:
    colour = str(rng.choice(list(COLOURS)))
    digit = int(rng.integers(10))
    image = _dark(rng, size)
    height = rng.uniform(0.75, 0.95) * min(size)
    x, y = (side / 2 + rng.uniform(-0.05, 0.05) * side for side in size)
    font = ImageFont.load_default(height)
    ImageDraw.Draw(image).text((x, y), str(digit), fill=COLOURS[colour], font=font, anchor="mm")
    facts = {"digit": str(digit), "colour": colour}
    return Question("image", "digit", "Which digit is shown?", str(digit), _noisy(image, rng), facts=facts)


def _places(
    rng: np.random.Generator, side: int, radius: float, direction: int, frames: int
) -> npt.NDArray[np.float64]:
    """Where a shape's middle is along one side, frame by frame: across it, or nowhere."""
    if not direction:
        return np.full(frames, rng.uniform(radius, side - radius))
    way = rng.uniform(0.8, 1.0) * (side - 2 * radius) * np.linspace(0, 1, frames)
    return radius + 2 + way if direction > 0 else side - radius - 2 - way


def clip(rng: np.random.Generator, size: tuple[int, int], frames: int = 3) -> Question:
    colour = str(rng.choice(list(COLOURS)))
    way = str(rng.choice(list(WAYS)))
    shape, radius = str(rng.choice(SHAPES)), rng.uniform(0.16, 0.22) * min(size)
    places = [
        _places(rng, side, radius, direction, frames) for side, direction in zip(size, WAYS[way], strict=True)
    ]
    pictures: list[Picture] = []
    for x, y in zip(*places, strict=True):
        image = _dark(rng, size)
        _draw(ImageDraw.Draw(image), shape, x, y, radius, COLOURS[colour])
        pictures.append(_noisy(image, rng))
    facts, seen = {"shape": shape, "colour": colour}, tuple(pictures)
    if rng.integers(4):
        return Question("video", "motion", "Which way does it move?", way, frames=seen, facts=facts)
    return Question("video", "clip colour", "What colour is the shape?", colour, frames=seen, facts=facts)


def tone(rng: np.random.Generator) -> Question:
    name = str(rng.choice(list(TONES)))
    count = int(rng.uniform(0.4, 0.9) * RATE)
    time = np.arange(count) / RATE
    wave = np.sin(2 * np.pi * rng.uniform(*TONES[name]) * time + rng.uniform(0, 6.28))
    sound = rng.uniform(0.1, 0.6) * wave * np.minimum(1, np.minimum(time, time[::-1]) * 50)
    sound += rng.normal(0, rng.uniform(0, 0.01), count)
    return Question("audio", "tone", "What tone is it?", name, sound=sound.astype(np.float32))


def speak(word: str, voice: str, speed: int, pitch: int) -> Sound:
    """What espeak-ng says, at 16 kHz. Needs espeak-ng."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    with wave.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)) as file:
        rate, pcm = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    samples = pcm.astype(np.float32) / 32768
    places = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    sound = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    heard = np.flatnonzero(np.abs(sound) > 0.01)
    return sound[max(0, heard[0] - 800) : heard[-1] + 800]


def spoken_digit(rng: np.random.Generator, say: Callable[[int, np.random.Generator], Sound]) -> Question:
    digit = int(rng.integers(10))
    sound = say(digit, rng)
    before, behind = rng.integers(0, 2400, 2)
    sound = np.concatenate([np.zeros(before, np.float32), sound, np.zeros(behind, np.float32)])
    sound = rng.uniform(0.5, 1.2) * sound + rng.normal(0, rng.uniform(0, 0.004), len(sound))
    heard = sound.astype(np.float32)
    return Question("audio", "spoken digit", "Which digit is spoken?", str(digit), sound=heard)


def text_task(rng: np.random.Generator) -> Question:
    which = int(rng.integers(5))
    if which == 0:
        word = "".join(rng.choice(list(LETTERS), int(rng.integers(3, 9))))
        return Question("text", "copying", f"Repeat: {word}", word)
    if which in (1, 2):
        a, b = (int(v) for v in rng.integers(0, 21, 2))
        thinking = which == 2
        return Question("text", "adding", f"What is {a} plus {b}?", str(a + b), thinking=thinking)
    if which == 3:
        city = str(rng.choice(CITIES))
        call = {"name": "get_weather", "arguments": {"city": city}}
        return Question("text", "tool call", f"How is the weather in {city}?", "", call=call)
    start = int(rng.integers(0, 40))
    counted = " ".join(str(start + i) for i in range(12))
    return Question("text", "counting", f"Count from {start}.", counted)


def wav(sound: Sound) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def png(picture: Picture) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out.getvalue()


def mp4(frames: tuple[Picture, ...]) -> bytes:
    """One frame a second."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream: Any = file.add_stream("libx264", rate=1)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())
    return out.getvalue()
