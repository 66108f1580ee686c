"""The equality contract on real architectures: schedules change nothing, past the sliding window too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle import compose
from ingle.config import EngineConfig
from ingle.contracts.request import Request, SamplingParams
from ingle.engine.loop import Engine
from ingle.kernels import ops
from support.collect import Collector

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
EXACT = ops.row_invariant(mx.float32)
TIE = 1e-3  # on plain MLX logits closer than this may change places: products round differently by shape


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    folder = FIXTURES / request.param
    busy = compose.load(folder, name="busy", config=EngineConfig(max_rows=3, window_tokens=7)).engine
    alone = compose.load(folder, name="alone", config=EngineConfig(max_rows=1, window_tokens=512)).engine
    yield busy, alone
    busy.close()
    alone.close()


numbers = iter(range(10**9))


@settings(max_examples=15)
@given(data=st.data())
def test_company_changes_no_token(engines: tuple[Engine, Engine], data: st.DataObject) -> None:
    busy, alone = engines
    got = Collector()
    jobs: list[Request] = []
    for _ in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(st.lists(st.integers(3, 159), min_size=1, max_size=30))
        sampling = SamplingParams(
            temperature=data.draw(st.sampled_from([0.0, 0.8])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
            top_p=data.draw(st.sampled_from([1.0, 0.9])),
            max_tokens=data.draw(st.integers(1, 24)),
            top_logprobs=2,
        )
        jobs.append(Request(id=f"j{next(numbers)}", prompt=tuple(prompt), sampling=sampling))
        busy.submit(jobs[-1], got)
        if data.draw(st.booleans()):
            got.wait_tokens(jobs[0].id, 2)
    for job in jobs:
        assert got.wait(job.id).reason == "length"
        alone.submit(Request(id=job.id + "a", prompt=job.prompt, sampling=job.sampling), got)
        assert got.wait(job.id + "a").reason == "length"
        mine, reference = got.tokens(job.id), got.tokens(job.id + "a")
        if EXACT:
            assert mine == reference
            assert got.logprobs(job.id) == got.logprobs(job.id + "a")
            continue
        for step, entry in enumerate(got.logprobs(job.id + "a")):
            if mine[step] != reference[step]:
                assert job.sampling.greedy
                assert entry.top[0][1] - entry.top[1][1] < TIE, "only a tie may part them"
                break
            assert got.logprobs(job.id)[step].logprob == pytest.approx(entry.logprob, abs=1e-4)
