"""Memory is predicted, bounded and given back; what never fits is refused, what does not fit now waits."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from ingle import compose
from ingle.cache.state import held_bytes, reset_peak
from ingle.config import EngineConfig
from ingle.contracts.cache import KEY_BLOCK, KVKind, Retention, StateLayout
from ingle.contracts.request import Request, SamplingParams, Started
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.engine.memory import RowMemory, available_bytes
from ingle.engine.memory_plan import MemoryPlan
from ingle.errors import ConfigError, InsufficientMemory
from ingle.kernels import native
from support.collect import Collector
from support.toy import VOCAB, ToyGraph

INFO = EngineInfo(vocab_size=VOCAB, context_length=2000, backend="toy")
LAYOUT = ToyGraph().layout
BLOCK = sum(LAYOUT.block_bytes(kind) for kind in range(len(LAYOUT.kinds)))
TRANSIENTS = 4096 * (64 + 2 * 4)  # of the toy, for the configuration below


def toy_engine(kv_blocks: float, **more: Any) -> Engine:
    """An engine whose KV may take so many blocks."""
    mx.synchronize()
    gc.collect()
    before = held_bytes()
    graph = ToyGraph()
    weights = held_bytes() - before
    del graph
    config = EngineConfig(
        max_rows=4, window_tokens=64, memory_bytes=int(weights + TRANSIENTS + kv_blocks * BLOCK), **more
    )
    return Engine(ToyGraph, INFO, config, row_invariant=False)


def request(name: str, prompt: list[int], max_tokens: int, **more: Any) -> Request:
    sampling = SamplingParams(temperature=0.8, seed=len(prompt), max_tokens=max_tokens)
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, **more)


@pytest.fixture(scope="module")
def plenty() -> Iterator[Engine]:
    engine = Engine(ToyGraph, INFO, EngineConfig(max_rows=4, window_tokens=64), row_invariant=False)
    yield engine
    engine.close()


def alone(engine: Engine, job: Request) -> list[int]:
    got = Collector()
    engine.submit(Request(id=job.id, prompt=job.prompt, sampling=job.sampling, cache_key=None), got)
    assert got.wait(job.id).reason == "length"
    return got.tokens(job.id)


def test_what_can_never_fit_is_refused_with_both_numbers_and_the_setting() -> None:
    engine = toy_engine(6.2)
    assert engine.info.fitting_tokens is not None and 300 < engine.info.fitting_tokens < 800
    with pytest.raises(
        InsufficientMemory, match=r"need .* MiB of KV, .* MiB are available .*--memory"
    ) as refused:
        engine.submit(request("big", [1] * 900, 100), Collector())
    assert refused.value.code == "insufficient_memory"
    got = Collector()
    engine.submit(request("fits", [1] * 100, 20), got)
    assert got.wait("fits").reason == "length"
    engine.close()


def test_too_little_for_any_answer_is_an_error_at_the_start() -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=r"memory is .* the model needs .*--memory"):
        toy_engine(0.5)
    assert threading.active_count() == threads


def test_what_does_not_fit_now_waits_and_nothing_changes(plenty: Engine) -> None:
    engine, got = toy_engine(9), Collector()
    jobs = [request(f"w{i}", [i + 1] * (150 + i), 60) for i in range(6)]
    for job in jobs:
        engine.submit(job, got)
    for job in jobs:
        assert got.wait(job.id).reason == "length"
        assert got.tokens(job.id) == alone(plenty, job)
    stats = engine.stats()
    assert stats.delayed > 0, "six rows of four blocks do not fit nine at once"
    assert stats.prompt_cache_bytes <= stats.kv_limit_bytes
    engine.close()


def test_rows_that_outgrow_the_memory_are_paused_and_nothing_changes(plenty: Engine) -> None:
    engine, got = toy_engine(14), Collector()
    jobs = [
        request(f"p{i}", [i + 2] * 20, 330) for i in range(4)
    ]  # small at first, six blocks each in the end
    for job in jobs:
        engine.submit(job, got)
    for job in jobs:
        assert got.wait(job.id).reason == "length"
        assert got.tokens(job.id) == alone(plenty, job)
        assert sum(isinstance(event, Started) for event in got.events[job.id]) == 1
    assert engine.stats().paused > 0
    engine.close()


def test_the_least_important_row_is_paused(plenty: Engine) -> None:
    engine, got = toy_engine(7), Collector()
    low = request("low", [2] * 20, 330, priority=-1)
    high = request("high", [3] * 20, 330, priority=1)
    for job in (low, high):
        engine.submit(job, got)
    got.wait("high")
    assert len(got.tokens("low")) < 330
    assert got.wait("low").reason == "length"
    assert got.tokens("low") == alone(plenty, low)
    engine.close()


def test_an_idle_engine_gives_memory_to_whoever_needs_it(plenty: Engine) -> None:
    """Nobody is refused because of what the prompt cache holds (all of it may go when nobody uses it)."""
    engine, got = toy_engine(8, prompt_cache_bytes=1 << 30), Collector()
    for i in range(12):
        job = request(f"i{i}", [i + 1] * 300, 40)
        engine.submit(job, got)
        assert got.wait(job.id).reason == "length"
        assert got.tokens(job.id) == alone(plenty, job)
    assert engine.stats().prompt_cache_bytes <= engine.stats().kv_limit_bytes
    assert engine.stats().paused == 0
    engine.close()


FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


@pytest.mark.skipif(not native.available(), reason="exact accounting is that of native blocks")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(("rows", "prompt", "output"), [(1, 400, 50), (4, 200, 120), (8, 60, 30)])
def test_kv_is_predicted_to_the_byte(
    name: str, rows: int, prompt: int, output: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[int] = []
    expect = MemoryPlan.expect

    def recording(self: MemoryPlan, kv: int, *, tokens: int, rows: int) -> None:
        expected.append(kv)
        expect(self, kv, tokens=tokens, rows=rows)

    monkeypatch.setattr(MemoryPlan, "expect", recording)
    gc.collect()
    before = native.cpu.kv_bytes()
    engine = compose.load(FIXTURES / name, name=name, config=EngineConfig(prompt_cache_bytes=0)).engine
    got = Collector()
    native.cpu.reset_kv_peak()
    for i in range(rows):
        sampling = SamplingParams(temperature=0.0, max_tokens=output)
        engine.submit(Request(id=f"k{i}", prompt=(5 + i,) * prompt, sampling=sampling, cache_key=None), got)
    for i in range(rows):
        assert got.wait(f"k{i}").reason == "length"
    measured = native.cpu.kv_peak_bytes() - before
    engine.close()
    assert measured <= max(expected) <= 1.15 * measured
    assert native.cpu.kv_bytes() == before


@pytest.mark.model
@pytest.mark.skipif(not native.available(), reason="exact accounting is that of native blocks")
def test_the_whole_is_predicted_within_15_percent_and_never_under(default_model_path: Path) -> None:
    gc.collect()
    mx.clear_cache()
    loaded = compose.load(default_model_path, name="m")
    engine, got = loaded.engine, Collector()
    for i in range(8):
        sampling = SamplingParams(temperature=0.0, max_tokens=30)
        engine.submit(Request(id=f"m{i}", prompt=(100 + i,) * (300 + 20 * i), sampling=sampling), got)
    for i in range(8):
        assert got.wait(f"m{i}").reason == "length"
    stats = engine.stats()
    engine.close()
    assert 0 < stats.peak_bytes <= stats.predicted_bytes <= 1.15 * stats.peak_bytes, (
        stats.peak_bytes / 2**20,
        stats.predicted_bytes / 2**20,
    )


def test_nothing_is_left_behind_by_a_thousand_cycles() -> None:
    """Cancelled before a row, in prefill, in decode, or finished: arrays, bytes, threads and files stay flat."""
    engine, got = toy_engine(40, prompt_cache_bytes=4 * BLOCK), Collector()

    def cycle(number: int) -> None:
        id = f"c{number}"
        if number % 4 == 0:  # before it has a row
            engine.submit(request(id, [1] * 30, 50), got)
            engine.cancel(id)
        elif number % 4 == 1:  # while its prompt is computed, mostly
            engine.submit(request(id, [number % 50] * 300, 5), got)
            engine.cancel(id)
        elif number % 4 == 2:  # in the middle of its answer
            engine.submit(request(id, [number % 50] * 10, 500), got)
            got.wait_tokens(id, 2)
            engine.cancel(id)
        else:
            engine.submit(request(id, [number % 50] * 70, 2), got)
        got.wait(id)
        del got.events[id]

    def counts() -> tuple[int, int, int, int]:
        gc.collect()
        arrays = sum(isinstance(item, mx.array) for item in gc.get_objects())
        return arrays, held_bytes(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    for number in range(200):
        cycle(number)
    before = counts()
    for number in range(200, 1200):
        cycle(number)
    after = counts()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_bytes) == (0, 0, 0)
    engine.close()
    assert after[0] <= before[0] + 8 and after[2:] == before[2:]
    assert after[1] <= before[1] + 2 * BLOCK


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("tokens", [1, 64, 65, 500, 1000])
def test_row_bytes_are_those_of_blocks(window: int | None, tokens: int) -> None:
    memory = RowMemory(StateLayout.of([KVKind(1, 2, 8, Retention(window, 4))]))
    block = 2 * 2 * 8 * 4 * KEY_BLOCK
    blocks = -(-tokens // KEY_BLOCK)
    if window is not None:
        blocks = min(blocks, -(-(window + 4) // KEY_BLOCK) + 1)
    assert memory.row(tokens) <= blocks * block
    assert sum(memory.growth(n, 1) for n in range(tokens)) == -(-tokens // KEY_BLOCK) * block


def test_what_the_machine_has_free_is_bounded_by_its_control_groups(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert available_bytes(tmp_path) == 64 * 1024
    (proc / "self" / "cgroup").write_text("0::/app/inner\n")
    outer = tmp_path / "sys/fs/cgroup/app"
    (outer / "inner").mkdir(parents=True)
    (outer / "inner" / "memory.max").write_text("max\n")
    (outer / "inner" / "memory.current").write_text("10\n")
    (outer / "memory.max").write_text("30000\n")
    (outer / "memory.current").write_text("10000\n")
    assert available_bytes(tmp_path) == 20000
    (outer / "memory.current").write_text("40000\n")
    assert available_bytes(tmp_path) == 0
    reset_peak()
