"""Measure Ingle against its peers, interleaved in one run, and print medians and ratios.

    python benchmarks/compare.py [--quick] [--json] [--llama-dir DIR] [--peers-python PYTHON]

Ratios above 1 mean that Ingle is faster. "same" is llama.cpp on the same Q4_1 file, "best" its file
re-quantised to Q4_0, "pure" that with every tensor at 4 bits (the output matrix too, which costs it
accuracy). Ingle always runs the Q4_1 file.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

from export import export
from peers import CACHE, HERE, LlamaCpp, PythonPeer, run, say

from ingle import compose
from ingle.cli.bench import http_rate
from ingle.cli.common import open_text_model
from ingle.cli.measure import Meter
from ingle.config import EngineConfig
from ingle.contracts.weights import Affine
from ingle.env import Environment
from ingle.kernels import native
from ingle.weights.checkpoint import open_checkpoint
from ingle.weights.sources import resolve

PROMPT, TOKENS, STREAM_PROMPT, STREAMS = 512, 128, 32, 8


class Rounds:
    """Named measurements taken in turn, round after round, so that a slow minute hits all of them."""

    def __init__(self) -> None:
        self._measures: dict[str, Callable[[], float]] = {}
        self.values: dict[str, list[float]] = {}

    def add(self, name: str, measure: Callable[[], float]) -> None:
        self._measures[name] = measure

    def take(self, count: int) -> None:
        for number in range(count):
            say(f"round {number + 1} of {count}")
            for name, measure in self._measures.items():
                self.values.setdefault(name, []).append(measure())
                say(f"  {name:28} {self.values[name][-1]:9.1f} tokens/s")

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, ours: str, theirs: str) -> float:
        """The median over rounds of our rate by theirs in the same round."""
        pairs = zip(self.values[ours], self.values[theirs], strict=True)
        return round(statistics.median(mine / other for mine, other in pairs), 2)


class Subject:
    """One model in a running Ingle engine, idle between measurements."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.loaded = compose.load(
            path, name=path.stem, config=EngineConfig(), drafter="none", threads=threads
        )
        self.meter = Meter(self.loaded.engine)
        self.meter.decode(1, 8, 8)  # warm

    def http(self) -> float:
        return http_rate(open_text_model(self.loaded), 1)


def weights(path: Path) -> tuple[int, int]:
    """(bytes that a decode step reads, parameters that every token is multiplied with)."""
    checkpoint = open_checkpoint(path)
    read = parameters = 0
    for name in checkpoint.weights.names():
        weight = checkpoint.weights.take(name)
        if isinstance(weight, Affine):
            read += weight.codes.nbytes + weight.scales.nbytes // weight.scales.itemsize * 2
            centred = weight.bits == 8  # Q8_0 has no biases to read
            read += 0 if centred else weight.biases.size * 2
        if len(weight.shape) == 2 and ".layers." in name:
            parameters += weight.shape[0] * weight.shape[1]
    return read, parameters


def limits(threads: int) -> dict[str, float]:
    binary = CACHE / "limits"
    CACHE.mkdir(parents=True, exist_ok=True)
    run("g++", "-O3", "-march=native", "-pthread", HERE / "limits.cpp", "-o", binary)
    return json.loads(run(binary, str(threads)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds and no Python peers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--llama-dir", type=Path, metavar="DIR", help="a llama.cpp build that is already there"
    )
    parser.add_argument("--peers-python", type=Path, help="an interpreter that has mlx-lm and transformers")
    parser.add_argument("--rounds", type=int, default=0, help="5 (2 with --quick)")
    args = parser.parse_args()
    native.configure()
    threads = native.cpu.threads()
    llama = LlamaCpp(args.llama_dir, threads)
    store = Environment.read().store()
    small, gemma = (Subject(resolve(n, store), threads) for n in ("smollm2-135m-instruct", "gemma-3-270m"))
    plain, pure = llama.quantized(small.path), llama.quantized(small.path, "--pure")

    rounds = Rounds()
    rounds.add("ingle prefill", lambda: small.meter.prefill(PROMPT)[0])
    rounds.add("llama.cpp prefill", lambda: llama.prefill(small.path, PROMPT))
    rounds.add("llama.cpp Q4_0 prefill", lambda: llama.prefill(plain, PROMPT))
    rounds.add("llama.cpp pure prefill", lambda: llama.prefill(pure, PROMPT))
    rounds.add("ingle decode", lambda: small.meter.decode(1, TOKENS, 1))
    rounds.add("llama.cpp decode", lambda: llama.decode(small.path, TOKENS))
    rounds.add("llama.cpp Q4_0 decode", lambda: llama.decode(plain, TOKENS))
    rounds.add("llama.cpp pure decode", lambda: llama.decode(pure, TOKENS))
    rounds.add("ingle 8 streams", lambda: small.meter.decode(STREAMS, TOKENS, STREAM_PROMPT))
    for name, path in (("Q4_1", small.path), ("Q4_0", plain), ("pure", pure)):
        rounds.add(
            f"llama.cpp {name} 8 streams",
            lambda path=path: llama.streams(path, STREAMS, STREAM_PROMPT, TOKENS),
        )
    rounds.add("ingle 1 stream", lambda: small.meter.decode(1, TOKENS, STREAM_PROMPT))
    rounds.add("ingle over HTTP", small.http)
    rounds.add("ingle gemma prefill", lambda: gemma.meter.prefill(PROMPT)[0])
    rounds.add("llama.cpp gemma prefill", lambda: llama.prefill(gemma.path, PROMPT))
    rounds.add("ingle gemma decode", lambda: gemma.meter.decode(1, TOKENS, 1))
    rounds.add("llama.cpp gemma decode", lambda: llama.decode(gemma.path, TOKENS))
    rounds.take(args.rounds or (2 if args.quick else 5))

    top = limits(threads)
    read, parameters = weights(small.path)
    result: dict[str, object] = {
        "prefill_vs_same": rounds.ratio("ingle prefill", "llama.cpp prefill"),
        "decode_vs_same": rounds.ratio("ingle decode", "llama.cpp decode"),
        "prefill_vs_best": rounds.ratio("ingle prefill", "llama.cpp Q4_0 prefill"),
        "prefill_vs_pure": rounds.ratio("ingle prefill", "llama.cpp pure prefill"),
        "decode_vs_best": rounds.ratio("ingle decode", "llama.cpp Q4_0 decode"),
        "decode_vs_pure": rounds.ratio("ingle decode", "llama.cpp pure decode"),
        "streams8_vs_best": rounds.ratio("ingle 8 streams", "llama.cpp Q4_0 8 streams"),
        "streams8_vs_pure": rounds.ratio("ingle 8 streams", "llama.cpp pure 8 streams"),
        "gemma_prefill": rounds.ratio("ingle gemma prefill", "llama.cpp gemma prefill"),
        "gemma_decode": rounds.ratio("ingle gemma decode", "llama.cpp gemma decode"),
        "http_overhead": round(1 - rounds.ratio("ingle over HTTP", "ingle 1 stream"), 3),
        "bandwidth_fraction": round(rounds.median("ingle decode") * read / top["read_gb_s"] / 1e9, 2),
        "bf16_peak_fraction": round(
            rounds.median("ingle prefill") * 2 * parameters / top["peak_gflop_s"] / 1e9, 2
        ),
    }
    rates = {name: round(rounds.median(name), 1) for name in rounds.values}
    if not args.quick:
        peers = PythonPeer(args.peers_python, threads)
        for name, codes in (("mlx_lm", True), ("transformers", False)):
            folder = export(small.path, CACHE / f"{small.path.stem}-{name}", codes=codes)
            peer = peers.rates(name, folder, PROMPT if name == "transformers" else 64, 16)
            for what in ("prefill", "decode"):
                rates[f"{name} {what}"] = round(peer[what], 1)
                result[f"{what}_vs_{name}"] = round(rounds.median(f"ingle {what}") / peer[what], 1)
    small.loaded.engine.close()
    gemma.loaded.engine.close()
    if args.json:
        print(json.dumps({**result, "rates": rates, "limits": top, "threads": threads}))
        return
    print(f"{small.loaded.description}; limits: {top}\n")
    for name, value in [*rates.items(), *result.items()]:
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
