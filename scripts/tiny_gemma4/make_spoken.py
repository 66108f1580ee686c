"""Write the spoken digits that `tiny-gemma4` is measured with, by voices that it never heard. Needs espeak-ng.

PYTHONPATH=benchmarks python scripts/tiny_gemma4/make_spoken.py benchmarks/spoken
"""

from __future__ import annotations

import sys
from pathlib import Path

import av
import numpy as np
import tiny_world as world


def main(folder: Path) -> None:
    for voice in world.UNHEARD:
        for digit, word in enumerate(world.NUMBERS):
            for speed, pitch in ((145, 42), (165, 58)):
                samples = world.speak(word, voice, speed, pitch)
                name = f"{digit}-{voice}-{speed}-{pitch}.flac"
                with av.open(str(folder / name), "w") as file:
                    stream = file.add_stream("flac", rate=world.RATE, layout="mono")
                    pcm = (np.clip(samples, -1, 1) * 32767).astype(np.int16)[None]
                    frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout="mono")
                    frame.sample_rate = world.RATE
                    file.mux(stream.encode(frame))
                    file.mux(stream.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
