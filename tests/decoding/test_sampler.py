"""The sampler is a pure function of logits, parameters, seed and position, and draws what it should."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.contracts.request import SamplingParams
from ingle.decoding.processors import TokenHistory
from ingle.decoding.sampler import Draw, Sampled, sample

VOCAB = 97
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5, VOCAB, VOCAB + 3]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=3),
    top_logprobs=st.sampled_from([None, 0, 4]),
)
draws = st.builds(
    lambda params, position, prompt, output: Draw(
        params, position, len(output), TokenHistory(frozenset(prompt), dict(Counter(output)))
    ),
    params,
    st.integers(0, 10**6),
    st.lists(st.integers(0, VOCAB - 1), max_size=5),
    st.lists(st.integers(0, VOCAB - 1), max_size=5),
)


def random_logits(rows: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32))


@given(st.lists(draws, min_size=1, max_size=6), st.integers(0, 1000))
def test_a_row_gets_the_same_token_in_any_company(batch: list[Draw], seed: int) -> None:
    logits = random_logits(len(batch), seed)
    together = sample(logits, batch)
    alone = [sample(logits[r : r + 1], [draw])[0] for r, draw in enumerate(batch)]
    assert together == alone


@given(draws, st.integers(0, 1000))
def test_truncation_is_respected(draw: Draw, seed: int) -> None:
    plain = Draw(
        SamplingParams(
            temperature=draw.params.temperature,
            top_p=draw.params.top_p,
            top_k=draw.params.top_k,
            min_p=draw.params.min_p,
            seed=draw.params.seed,
        ),
        draw.position,
        0,
    )
    logits = random_logits(1, seed)
    token = sample(logits, [plain])[0][0].token
    assert token is not None
    values = np.array(logits[0], np.float64)
    rank = int(np.sum(values > values[token]))
    if plain.params.greedy:
        assert rank == 0
        return
    probabilities = np.exp((values - values.max()) / plain.params.temperature)
    k = plain.params.top_k or VOCAB
    assert rank < k
    kept = np.sort(probabilities)[::-1][: min(k, VOCAB)]
    before = float(kept[:rank].sum() / kept.sum())
    assert before <= plain.params.top_p + 1e-5
    assert probabilities[token] >= plain.params.min_p - 1e-5


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.1, 0.2, 0.3, 0.4]),
        ({"temperature": 0.5}, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
        ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]),
        ({"top_p": 0.6}, [0, 0, 3 / 7, 4 / 7]),
        ({"top_p": 0.39}, [0, 0, 0, 1]),
        ({"min_p": 0.45}, [0, 2 / 9, 3 / 9, 4 / 9]),
    ],
)
def test_frequencies_follow_the_distribution(sampling: dict[str, float], expected: list[float]) -> None:
    count = 4000
    logits = mx.broadcast_to(mx.log(mx.array([[0.1, 0.2, 0.3, 0.4]])), (count, 4))
    picks = sample(logits, [Draw(SamplingParams(seed=seed, **sampling), 7, 0) for seed in range(count)])  # type: ignore[arg-type]
    seen = Counter(pick.token for (pick,) in picks)
    for token, probability in enumerate(expected):
        error = 4.5 * math.sqrt(count * probability * (1 - probability))  # 4.5 standard deviations
        assert abs(seen[token] - count * probability) <= error


def test_noise_is_independent_across_positions() -> None:
    logits = mx.zeros((2000, 2))
    picks = [p.token for (p,) in sample(logits, [Draw(SamplingParams(seed=3), n, 0) for n in range(2000)])]
    assert 850 < sum(t or 0 for t in picks) < 1150
    pairs = Counter(zip(picks, picks[1:], strict=False))
    assert all(400 < count < 600 for count in pairs.values())


def test_a_row_that_is_not_finite_is_reported_and_hurts_nobody() -> None:
    logits = random_logits(3, 1)
    good = sample(logits, [Draw(SamplingParams(), 1, 0)] * 3)
    broken = mx.where(mx.arange(3)[:, None] == 1, mx.inf, logits)
    got = sample(broken, [Draw(SamplingParams(), 1, 0)] * 3)
    assert got[1][0].token is None
    assert (got[0], got[2]) == (good[0], good[2])


def test_penalties_and_bias_by_hand() -> None:
    logits = mx.array([[2.0, 1.0, -1.0, 0.0]])
    history = TokenHistory(frozenset({2}), {0: 2})

    def pick(**sampling: object) -> int | None:
        return sample(logits, [Draw(SamplingParams(temperature=0.0, **sampling), 9, 2, history)])[0][0].token  # type: ignore[arg-type]

    assert pick() == 0
    assert pick(repetition_penalty=3.0) == 1  # 2 / 3 < 1
    assert pick(presence_penalty=1.5) == 1  # 2 - 1.5 < 1
    assert pick(frequency_penalty=0.4) == 0  # 2 - 0.8 > 1
    assert pick(frequency_penalty=0.6) == 1  # 2 - 1.2 < 1
    assert pick(logit_bias={3: 5.0}) == 3
    assert pick(min_tokens=5, max_tokens=9, stop_token_ids=(0,)) == 1
    assert pick(min_tokens=2, max_tokens=9, stop_token_ids=(0,)) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("inf")),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", dict.fromkeys(range(2000), 1.0)),
        ("top_logprobs", 21),
        ("max_tokens", 0),
        ("min_tokens", 17),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_ties_in_top_logprobs_go_by_id() -> None:
    logits = mx.array([[1.0, 3.0, 1.0, 1.0, 0.0]])
    got = sample(logits, [Draw(SamplingParams(temperature=0.0, top_logprobs=3), 0, 0)])[0][0]
    assert got.logprobs is not None
    assert [token for token, _ in got.logprobs.top] == [1, 0, 2]
    assert math.isclose(got.logprobs.logprob, 3 - math.log(math.exp(3) + 3 * math.e + 1), abs_tol=1e-5)


@given(draws, st.lists(st.integers(0, 3), max_size=5), st.integers(0, 1000), st.booleans())
def test_drafts_change_how_many_tokens_and_never_which(
    draw: Draw, wrong: list[int], seed: int, stops: bool
) -> None:
    """Drafts that are right up to a place, over logits that do not depend on them."""
    logits = random_logits(len(wrong) + 1, seed)
    one_by_one: list[Sampled] = []
    step = draw
    for line in range(len(wrong) + 1):
        ((sampled,),) = sample(logits[line : line + 1], [step])
        one_by_one.append(sampled)
        assert sampled.token is not None
        history = None if step.history is None else step.history.with_token(sampled.token)
        step = replace(step, position=step.position + 1, generated=step.generated + 1, history=history)
    right = [sampled.token or 0 for sampled in one_by_one[:-1]]
    drafts = tuple((token + (offset == 0)) % VOCAB for token, offset in zip(right, wrong, strict=True))
    if stops and right:
        draw = replace(draw, params=replace(draw.params, stop_token_ids=(right[-1],)))
    kept = next(
        (i for i, pair in enumerate(zip(right, drafts, strict=True)) if pair[0] != pair[1]), len(right)
    )
    if stops and right:
        kept = min(kept, right.index(right[-1]))
    company = Draw(SamplingParams(seed=5), 3, 0)
    lines = mx.concatenate([random_logits(1, 1), logits, random_logits(1, 2)])
    _, got, _ = sample(lines, [company, replace(draw, drafts=drafts), company])
    assert list(got) == one_by_one[: kept + 1]
