"""Prompts that begin alike share KV; nothing else does, nothing changes, and the byte budget holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from ingle import compose
from ingle.cache.arrays import ArrayState
from ingle.cache.tables import TableState
from ingle.config import EngineConfig
from ingle.contracts.cache import KEY_BLOCK, KVKind, Retention, RowState, StateLayout
from ingle.contracts.request import ContentSpan, Request, SamplingParams, Started
from ingle.engine.handle import EngineInfo
from ingle.engine.loop import Engine
from ingle.engine.prompt_cache import BlockKey, PromptCache, block_key
from ingle.kernels import native
from support.collect import Collector
from support.toy import VOCAB, ToyGraph

LAYOUT = StateLayout.of(
    [KVKind(1, 1, 4, Retention()), KVKind(1, 1, 4, Retention(100, 4)), KVKind(1, 1, 4, Retention())]
)
BLOCK = sum(LAYOUT.block_bytes(kind) for kind in range(2))
FORMS = [
    "arrays",
    pytest.param("tables", marks=pytest.mark.skipif(not native.available(), reason="no extension")),
]


def computed(form: str, tokens: list[int], start: RowState | None = None) -> RowState:
    """A row that has computed `tokens`: every value is the token itself."""
    state = start or (TableState(LAYOUT, 1) if form == "tables" else ArrayState(LAYOUT, 1, mx.float32))
    new = tokens[state.lengths[0] :]
    for at in range(0, len(new), 50):
        part = mx.array(new[at : at + 50], mx.float32)
        state.reserve(part.size)
        for layer in range(3):
            values = mx.broadcast_to(part[None, None, :, None], (1, 1, part.size, 4))
            state.write(layer, values, values)
        state.advance([part.size])
        mx.eval(state.arrays)
    return state


def keys(tokens: list[int], content: tuple[ContentSpan, ...] = ()) -> list[BlockKey]:
    return [
        block_key(tuple(tokens[b * KEY_BLOCK : (b + 1) * KEY_BLOCK]), b, content)
        for b in range(len(tokens) // KEY_BLOCK)
    ]


def keep(cache: PromptCache, form: str, tokens: list[int], content: tuple[ContentSpan, ...] = ()) -> None:
    """A row computes the tokens, block after block, publishes them and goes."""
    lease, hit = cache.match(b"", keys(tokens, content), content)
    state = computed(form, [])
    if hit is not None:
        state.adopt(hit.length, hit.blocks, hit.carried)
    for end in range(KEY_BLOCK, len(tokens) + KEY_BLOCK, KEY_BLOCK):
        if end > state.lengths[0]:
            computed(form, tokens[:end], state)
            cache.publish(lease, keys(tokens[: state.lengths[0]], content), state, 0, known=len(tokens))
    cache.release(lease)


def hit_of(cache: PromptCache, form: str, tokens: list[int], content: tuple[ContentSpan, ...] = ()) -> int:
    """How much of the tokens is there; what is there must be right."""
    lease, hit = cache.match(b"", keys(tokens, content), content)
    cache.release(lease)
    if hit is None:
        return 0
    state = computed(form, [])
    state.adopt(hit.length, hit.blocks, hit.carried)
    for layer in range(3):
        base, held, _ = state.contents(layer, 0)
        assert held[0, :, 0].tolist() == [float(t) for t in tokens[base : hit.length]]
    return hit.length


@pytest.mark.parametrize("form", FORMS)
def test_the_longest_common_beginning_is_found(form: str) -> None:
    cache = PromptCache(LAYOUT, 100 * BLOCK)
    one = list(range(300))
    keep(cache, form, one)
    assert cache.nbytes == 4 * BLOCK
    assert hit_of(cache, form, one) == 256
    assert hit_of(cache, form, one[:200]) == 192
    assert hit_of(cache, form, [*one[:130], 7, 7]) == 128
    assert hit_of(cache, form, [5, *one]) == 0
    assert cache.match(b"somebody else", keys(one), ())[1] is None
    keep(cache, form, [*one[:128], *range(1000, 1100)])
    assert cache.nbytes == 5 * BLOCK, "the common blocks are stored once"


@pytest.mark.parametrize("form", FORMS)
def test_media_are_told_apart_by_their_digest(form: str) -> None:
    """Equal tokens, pictures of equal size: only the digest differs."""
    cache = PromptCache(LAYOUT, 100 * BLOCK)
    tokens = [*range(100), *[9] * 40, *range(60), *range(100)]
    a, b = ((ContentSpan(100, 140, digest),) for digest in (b"A" * 32, b"B" * 32))
    keep(cache, form, tokens, a)
    assert hit_of(cache, form, tokens, a) == 256
    assert hit_of(cache, form, tokens, b) == 64, "nothing from the picture on"
    assert hit_of(cache, form, tokens, ()) == 64, "and nothing without a digest"
    moved = (ContentSpan(101, 140, b"A" * 32),)
    assert hit_of(cache, form, tokens, moved) == 64
    keep(cache, form, tokens, b)
    assert hit_of(cache, form, tokens, a) == 256
    assert hit_of(cache, form, tokens[:130], a) == 64, "a hit never ends inside a picture"


@pytest.mark.parametrize("form", FORMS)
def test_the_budget_holds_and_the_oldest_go(form: str) -> None:
    cache = PromptCache(LAYOUT, 6 * BLOCK)
    first, second, third = (list(range(n, n + 192)) for n in (0, 1000, 2000))
    keep(cache, form, first)
    keep(cache, form, second)
    assert hit_of(cache, form, first) == 192  # which makes it young
    keep(cache, form, third)
    assert cache.nbytes <= 6 * BLOCK
    assert hit_of(cache, form, first) == 192
    assert hit_of(cache, form, second) < 192
    assert hit_of(cache, form, third) == 192
    keep(cache, form, list(range(5000, 5000 + 7 * KEY_BLOCK)))
    assert hit_of(cache, form, third) == 192, "an entry larger than the budget pushes nobody out"
    assert cache.shrink(10**9) > 0
    assert cache.nbytes == 0
    assert not cache._roots, "and leaves nothing behind"  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_row_holds_stays(form: str) -> None:
    cache = PromptCache(LAYOUT, 4 * BLOCK)
    mine = list(range(192))
    keep(cache, form, mine)
    lease, hit = cache.match(b"", keys(mine), ())
    assert hit is not None
    keep(cache, form, list(range(3000, 3192)))
    cache.shrink(10**9)
    state = computed(form, [])
    state.adopt(hit.length, hit.blocks, hit.carried)
    assert state.contents(0, 0)[1][0, :, 0].tolist() == mine
    assert cache.nbytes >= 3 * LAYOUT.block_bytes(0)
    cache.release(lease)
    cache.shrink(10**9)
    assert cache.nbytes == 0


@pytest.mark.skipif(not native.available(), reason="no extension")
def test_a_kept_block_is_the_same_after_many_rows_have_used_it() -> None:
    cache = PromptCache(LAYOUT, 100 * BLOCK)
    tokens = list(range(192))
    keep(cache, "tables", tokens)
    lease, hit = cache.match(b"", keys(tokens), ())
    assert hit is not None
    kept = [block for blocks in hit.blocks for block in blocks]
    before = [bytes(block) for block in kept]  # pyright: ignore[reportArgumentType]
    for row in range(12):
        state = computed("tables", [])
        state.adopt(hit.length, hit.blocks, hit.carried)
        computed("tables", [*tokens, *[900 + row] * 100], state)
        state.trim([3])
        computed("tables", [*tokens, *[900 + row] * 97, 7, 7, 7], state)
    assert [bytes(block) for block in kept] == before  # pyright: ignore[reportArgumentType]
    cache.release(lease)


@pytest.mark.parametrize("form", FORMS)
def test_inner_pieces_of_windows_go_first(form: str) -> None:
    """A long prompt's end stays usable when the windows inside it are gone; its middle is not, and says so."""
    cache = PromptCache(LAYOUT, 10 * BLOCK)
    tokens = list(range(640))
    keep(cache, form, tokens)
    assert hit_of(cache, form, tokens) == 640
    cache.shrink(5 * LAYOUT.block_bytes(1))
    assert hit_of(cache, form, tokens) == 640
    assert hit_of(cache, form, tokens[:200]) == 0


INFO = EngineInfo(vocab_size=VOCAB, context_length=2000, backend="toy")


@pytest.fixture(params=[False, True], ids=["attention", "recurrent"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine(
        lambda: ToyGraph(recurrent=request.param),
        INFO,
        EngineConfig(max_rows=4, window_tokens=128),
        row_invariant=False,
    )
    yield engine
    engine.close()


def run(engine: Engine, name: str, prompt: list[int], **more: Any) -> tuple[list[int], int]:
    got = Collector()
    sampling = SamplingParams(temperature=0.0, max_tokens=more.pop("max_tokens", 8))
    engine.submit(Request(id=name, prompt=tuple(prompt), sampling=sampling, **more), got)
    assert got.wait(name).reason == "length"
    (started,) = (event for event in got.events[name] if isinstance(event, Started))
    return got.tokens(name), started.cached_tokens


def test_a_second_turn_begins_where_the_first_ended(engine: Engine) -> None:
    first = [i * 7 % 50 for i in range(300)]
    tokens, cached = run(engine, "one", first, max_tokens=90)
    assert cached == 0
    second = [*first, *tokens, 3, 4, 5]
    warm, cached = run(engine, "two", second)
    # What a recurrent layer carries is kept where a prompt's window ended, not in the middle of an answer.
    assert cached in (256, 384)
    cold, none = run(engine, "three", second, cache_key=None)
    assert none == 0
    assert warm == cold
    assert run(engine, "four", second, cache_key=b"another key") == (cold, 0)
    stats = engine.stats()
    assert stats.cached_tokens == cached
    assert stats.cached_bytes > 0
    assert 0 < stats.prompt_cache_bytes <= stats.kv_limit_bytes
    assert stats.kv_bytes == 0


def test_a_cancelled_request_leaves_what_it_had_computed(engine: Engine) -> None:
    prompt = [i * 11 % 50 for i in range(400)]
    got = Collector()
    sampling = SamplingParams(temperature=0.0, max_tokens=1500)
    engine.submit(Request(id="gone", prompt=tuple(prompt), sampling=sampling), got)
    got.wait_tokens("gone", 3)
    engine.cancel("gone")
    got.wait("gone")
    warm, cached = run(engine, "after", prompt)
    assert cached >= 256
    assert warm == run(engine, "cold", prompt, cache_key=None)[0]


def test_many_users_of_one_system_prompt_store_it_once(engine: Engine) -> None:
    system = [i * 3 % 50 for i in range(256)]
    prompts = [[*system, *[user] * 20] for user in range(16)]
    run(engine, "warm", [*system, 1])
    before = engine.stats().prompt_cache_bytes
    got = Collector()
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    for user, prompt in enumerate(prompts):
        engine.submit(Request(id=f"u{user}", prompt=tuple(prompt), sampling=sampling), got)
    for user, prompt in enumerate(prompts):
        assert got.wait(f"u{user}").reason == "length"
        started = next(e for e in got.events[f"u{user}"] if isinstance(e, Started))
        assert started.cached_tokens == 256
        assert got.tokens(f"u{user}") == run(engine, f"cold{user}", prompt, cache_key=None)[0]
    assert engine.stats().prompt_cache_bytes == before, "no whole block is new"


def disk_engine(
    folder: Path, *, recurrent: bool = False, identity: str = "toy", disk: int = 1 << 30
) -> Engine:
    config = EngineConfig(
        max_rows=4, window_tokens=128, prompt_cache_dir=folder, prompt_cache_disk_bytes=disk
    )
    info = EngineInfo(vocab_size=VOCAB, context_length=2000, backend="toy", identity=identity)
    return Engine(lambda: ToyGraph(recurrent=recurrent), info, config, row_invariant=False)


PROMPT = [i * 7 % 50 for i in range(300)]


@pytest.mark.parametrize("recurrent", [False, True])
def test_blocks_survive_a_restart(tmp_path: Path, recurrent: bool) -> None:
    engine = disk_engine(tmp_path, recurrent=recurrent)
    cold, cached = run(engine, "cold", PROMPT)
    assert cached == 0
    engine.close()
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    again = disk_engine(tmp_path, recurrent=recurrent)
    assert run(again, "warm", PROMPT) == (cold, 256)
    assert run(again, "other", PROMPT, cache_key=b"somebody else")[1] == 0
    again.close()
    other = disk_engine(tmp_path, recurrent=recurrent, identity="another model")
    assert run(other, "foreign", PROMPT) == (cold, 0)
    other.close()


def test_damaged_files_are_absent_and_go(tmp_path: Path) -> None:
    engine = disk_engine(tmp_path)
    cold, _ = run(engine, "cold", PROMPT)
    engine.close()
    files = sorted(tmp_path.glob("*.safetensors"))
    (tmp_path / ".writing-1-x.safetensors").write_bytes(b"half")

    def cut(data: bytes) -> bytes:
        return data[: len(data) // 2]

    def flip(data: bytes) -> bytes:
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]

    for damage in (cut, flip, lambda data: b"", lambda data: b"not a block"):
        for file in files:
            file.write_bytes(damage(file.read_bytes()))
        again = disk_engine(tmp_path)
        assert run(again, "again", PROMPT) == (cold, 0)
        again.close()
        assert sorted(tmp_path.glob("*.safetensors")) == files, "they are written anew"
    assert not list(tmp_path.glob(".writing*"))
    hits: list[int] = []
    for attempt in range(4):  # each finds the first damaged file, and mends it
        healing = disk_engine(tmp_path)
        tokens, cached = run(healing, f"healing {attempt}", PROMPT)
        healing.close()
        assert tokens == cold
        hits.append(cached)
    assert hits == [64, 128, 192, 256]


def test_the_disk_has_a_limit_too(tmp_path: Path) -> None:
    engine = disk_engine(tmp_path, disk=6 * 40_000)
    for i in range(6):
        run(engine, f"d{i}", [i, *PROMPT])
    engine.close()
    files = list(tmp_path.glob("*.safetensors"))
    assert files
    assert sum(file.stat().st_size for file in files) <= 6 * 40_000


@pytest.mark.skipif(not native.available(), reason="no extension")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_restored_bits_are_the_same(tmp_path: Path, name: str) -> None:
    folder = Path(__file__).parents[1] / "parity" / "fixtures" / name
    sampling = SamplingParams(temperature=0.0, max_tokens=20, top_logprobs=3)
    got = Collector()
    for attempt in ("cold", "warm"):
        config = EngineConfig(prompt_cache_dir=tmp_path)
        engine = compose.load(folder, name=name, config=config).engine
        engine.submit(Request(id=attempt, prompt=tuple(t + 3 for t in PROMPT), sampling=sampling), got)
        assert got.wait(attempt).reason == "length"
        engine.close()
    assert [e.cached_tokens for e in got.events["warm"] if isinstance(e, Started)] == [256]
    assert got.tokens("cold") == got.tokens("warm")
    assert got.logprobs("cold") == got.logprobs("warm")
