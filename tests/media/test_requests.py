"""Media in requests: from a client's parts to soft tokens with keys, over HTTP and below it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ingle.config import FetchPolicy, MediaConfig, ServerConfig
from ingle.contracts.media import LoadedMedia, MediaPart, MediaSpec
from ingle.errors import CheckpointError, InvalidRequest, MediaRefused
from ingle.media.fetch import Fetcher
from ingle.media.loader import MediaLoader
from ingle.media.local import read_local
from ingle.text.media_prompt import resolve_tokens
from ingle.text.tokenizer import Tokenizer
from ingle.weights.hf_media import media_assets as read_media_assets
from support import media_corpus as made
from support.served import Running
from support.tiny_tokenizer import VOCAB_SIZE, media_assets
from support.web import Net, answer

BOI, IMAGE, EOI, BOA, AUDIO, EOA, VIDEO = range(VOCAB_SIZE, VOCAB_SIZE + 7)
PNG = made.saved(made.picture(), "PNG")
WAV = made.riff(made.fmt(), made.chunk(b"data", made.PCM16.tobytes()))
CLIP = made.clip(count=4, fps=2)
SPEC = resolve_tokens(media_assets().media, Tokenizer.load(media_assets()))  # pyright: ignore[reportArgumentType]


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(data: bytes = PNG, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def sound(data: bytes = WAV, format: str = "mp3") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": format}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    running = Running(
        ServerConfig(port=0), media=MediaConfig(max_soft_tokens=800), media_assets=media_assets()
    )
    yield running
    running.server.should_exit = True
    running.thread.join(20)
    running.engine.close()


@pytest.fixture(scope="module")
def blind() -> Iterator[Running]:
    running = Running(ServerConfig(port=0))
    yield running
    running.server.should_exit = True
    running.thread.join(20)
    running.engine.close()


def ask(
    server: Running,
    *parts: dict[str, Any],
    status: int = 200,
    path: str = "/v1/chat/completions",
    **more: Any,
) -> Any:
    body = {"model": "toy", "max_tokens": 2, "messages": [{"role": "user", "content": list(parts)}], **more}
    got = server.post(path, json.dumps(body))
    assert got.status_code == status, got.text
    return got.json()


def tokens(server: Running, *parts: dict[str, Any]) -> list[int]:
    return ask(server, *parts, path="/tokenize")["tokens"]


def bare(ids: list[int]) -> list[int]:
    return [i for i in ids if i >= VOCAB_SIZE]


def test_each_kind_is_answered_and_counted(served: Running) -> None:
    clip = {"type": "video_url", "video_url": {"url": data_url(CLIP, "video/mp4")}}
    details = ask(served, text("see "), image(), sound(), clip)["usage"]["prompt_tokens_details"]
    assert details["audio_tokens"] == 25
    frames = 4 * 63
    assert details["image_tokens"] == 63 and details["video_tokens"] == frames
    assert [m["kind"] for m in details["media"]] == ["image", "audio", "video"]
    assert not any(m["truncated"] for m in details["media"])


def test_parts_keep_their_place_inside_the_turn(served: Running) -> None:
    ids = tokens(served, text("ab"), image(), text("cd"), sound(), text("ef"))
    start = ids.index(ord("a"))
    assert ids[start : start + 2] == list(b"ab")
    assert ids[start + 2] == BOI and ids[start + 66] == EOI and ids[start + 3 : start + 66] == [IMAGE] * 63
    assert ids[start + 67 : start + 69] == list(b"cd")
    assert ids[start + 69] == BOA and ids[start + 70 : start + 95] == [AUDIO] * 25 and ids[start + 95] == EOA
    assert ids[start + 96 : start + 98] == list(b"ef")


def test_a_request_of_sound_alone_stands_in_the_users_turn(served: Running) -> None:
    ids = tokens(served, sound())
    ours = served.model.tokenizer.decode(ids[: ids.index(BOA)], skip_special=False)
    assert ours.endswith("<|start|>user\n")


def test_frames_of_a_clip_are_named_by_their_times(served: Running) -> None:
    ids = tokens(served, {"type": "video_url", "video_url": data_url(CLIP, "video/mp4")})
    shown = [i for i in ids if i != VIDEO]
    assert "00:00 <|image><image|> 00:00 <|image><image|> 00:01 <|image><image|> 00:01 <|image><image|>" in (
        served.model.tokenizer.decode(shown, skip_special=False)
    )
    assert ids.count(VIDEO) == 4 * 63


def test_the_sound_of_a_clip_when_asked_for(served: Running) -> None:
    url = data_url(made.clip(count=2, sound=True), "video/mp4")
    silent = tokens(served, {"type": "video_url", "video_url": {"url": url}})
    heard = tokens(served, {"type": "video_url", "video_url": {"url": url, "sound": True}})
    assert AUDIO not in silent and heard.count(AUDIO) in (25, 26)


def test_files_are_what_their_bytes_are(served: Running) -> None:
    for data, token in ((PNG, IMAGE), (WAV, AUDIO), (CLIP, VIDEO)):
        part = {"type": "file", "file": {"file_data": data_url(data, "application/pdf"), "filename": "x.pdf"}}
        assert token in tokens(served, part)
    bad = ask(served, {"type": "file", "file": {"file_id": "file-1"}}, status=400)
    assert bad["error"]["param"] == "messages[0].content[0].file.file_id"


def test_detail_chooses_the_budget(served: Running) -> None:
    large = made.saved(made.picture(size=(400, 400)), "PNG")
    assert tokens(served, image(large, detail="low")).count(IMAGE) == 64
    bad = ask(served, image(detail="best"), status=400)["error"]
    assert bad["param"] == "messages[0].content[0].image_url.detail" and "'best'" in bad["message"]


def test_nobody_types_a_soft_token(served: Running) -> None:
    ids = tokens(served, text("<|image|><|audio|>"), image(), text("<|image>"))
    assert ids.count(IMAGE) == 63 and ids.count(BOI) == 1 and AUDIO not in ids


def test_raw_prompts_take_parts_too(served: Running) -> None:
    body = {"model": "toy", "max_tokens": 1, "prompt": [text("a"), image(), text("b")]}
    got = served.post("/v1/completions", json.dumps(body)).json()
    assert got["usage"]["prompt_tokens_details"]["image_tokens"] == 63
    body["prompt"] = [text("a<|image|>"), image()]
    got = served.post("/v1/completions", json.dumps(body))
    assert got.status_code == 400 and "2 places for image" in got.json()["error"]["message"]


def test_text_alone_is_as_before(served: Running, blind: Running) -> None:
    assert tokens(served, text("hello"), text(" you")) == tokens(blind, text("hello you"))


@pytest.mark.parametrize(
    "part",
    [image(), sound(), {"type": "video_url", "video_url": "http://127.0.0.1:1/x"}, {"type": "file", "file": {"file_data": "AA"}}],
)  # fmt: skip
def test_a_model_that_takes_no_media_says_so_by_name(blind: Running, part: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        error = ask(blind, text("x"), part, status=400, path=path)["error"]
        assert "model 'toy' takes no" in error["message"] and error["code"] == "unsupported_media"
        assert error["param"] == "messages[0].content[1]"


@pytest.mark.parametrize("name", ["image_url", "audio_url", "video_url"])
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://169.254.169.254/latest",
        "http://10.0.0.1/",
        "http://localhost/",
        "file:///etc/passwd",
    ],
)
def test_private_addresses_are_refused_in_every_kind(served: Running, name: str, url: str) -> None:
    error = ask(served, {"type": name, name: {"url": url}}, status=400)["error"]
    assert error["message"] == "messages[0].content[0]: the address is not allowed"
    assert error["code"] == "media_not_allowed" and error["param"] == "messages[0].content[0]"


def test_bad_parts_are_named(served: Running) -> None:
    for part, param in (
        ({"type": "image_url"}, "messages[0].content[0].image_url"),
        ({"type": "image_url", "image_url": {"url": 5}}, "messages[0].content[0].image_url.url"),
        (
            {"type": "input_audio", "input_audio": {"format": "wav"}},
            "messages[0].content[0].input_audio.data",
        ),
        (
            {"type": "video_url", "video_url": {"url": "x", "sound": 1}},
            "messages[0].content[0].video_url.sound",
        ),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "messages[0].content[0]"),
        (image(b"not a picture"), "messages[0].content[0]"),
        (sound(made.riff(made.fmt(), made.chunk(b"data", b"\0" * 100))), "messages[0].content[0]"),
    ):
        assert ask(served, part, status=400)["error"]["param"] == param
    body = {
        "model": "toy",
        "messages": [{"role": "system", "content": [image()]}, {"role": "user", "content": "x"}],
    }
    got = served.post("/v1/chat/completions", json.dumps(body))
    assert got.status_code == 400 and "system messages take text parts" in got.json()["error"]["message"]
    assert ask(served, text("still here"))["choices"]


def test_too_much_media_is_refused_with_its_limit(served: Running) -> None:
    assert (
        "has 9 pieces of media, the limit is 8" in ask(served, *[image()] * 9, status=400)["error"]["message"]
    )
    large = made.saved(made.picture(size=(400, 400)), "PNG")
    message = ask(served, image(large, detail="high"), status=400)["error"]["message"]
    assert "more than 800 tokens" in message


def test_results_are_counted(served: Running) -> None:
    metrics = httpx2.get(served.url + "/metrics").text
    assert 'ingle_media_results_total{result="decoded",step="decode"}' in metrics
    assert 'ingle_media_results_total{result="not_allowed",step="fetch"}' in metrics
    assert 'ingle_media_phase_seconds_count{phase="decode"}' in metrics


def load(
    parts: list[MediaPart],
    spec: MediaSpec = SPEC,
    config: MediaConfig | None = None,
    fetcher: Fetcher | None = None,
) -> list[LoadedMedia]:
    async def main() -> list[LoadedMedia]:
        loader = MediaLoader(config or MediaConfig(workers=1), fetcher=fetcher)
        try:
            return await loader.load(parts, spec)
        finally:
            loader.close()

    return asyncio.run(main())


def inline(data: bytes, kind: Any = "image", **more: Any) -> MediaPart:
    return MediaPart(kind, "here", base64=base64.b64encode(data).decode(), **more)


def test_keys_cover_content_size_and_settings() -> None:
    wide, tall = (made.saved(made.picture(size=s), "PNG") for s in ((150, 30), (30, 150)))
    red, blue = (made.saved(made.picture("P", color=c), "PNG") for c in ("red", "blue"))
    parts = [inline(data) for data in (wide, tall, red, blue)] + [inline(red, budget=280)]
    keys = [item.blocks[0].digest for item in load(parts)]
    assert len(set(keys)) == 5 and all(len(key) == 32 for key in keys)
    again = load([inline(red)])[0].blocks[0].digest
    assert again == keys[2]


def test_keys_of_clips_cover_their_frames() -> None:
    one, other = made.clip(count=3), made.clip(count=3, size=(48, 64))
    first, second = (item.blocks for item in load([inline(one, "video"), inline(other, "video")]))
    assert len({b.digest for b in (*first, *second)}) == 6


def test_equal_addresses_are_fetched_once_and_failures_once() -> None:
    async def main() -> None:
        async with Net() as net:
            net.pages["/a.png"] = answer(PNG)
            net.pages["/bad"] = answer(b"no picture")
            loader = MediaLoader(MediaConfig(workers=1), fetcher=net.fetcher())
            try:
                parts = [MediaPart("image", f"p{i}", url=net.url("/a.png")) for i in range(8)]
                assert len(await loader.load(parts, SPEC)) == 8
                assert len(net.requests) == 1
                bad = [MediaPart("image", f"p{i}", url=net.url("/bad")) for i in range(3)]
                with pytest.raises(MediaRefused, match="no known image"):
                    await loader.load(bad, SPEC)
                assert len(net.requests) == 2
            finally:
                loader.close()

    asyncio.run(main())


def test_four_fetches_at_once_and_one_deadline() -> None:
    async def main() -> None:
        async with Net() as net:

            async def silence(_: bytes, __: Any) -> None:
                await asyncio.sleep(30)

            for i in range(8):
                net.pages[f"/{i}"] = silence
            loader = MediaLoader(MediaConfig(workers=1, timeout_s=0.5), fetcher=net.fetcher())
            try:
                parts = [MediaPart("image", f"p{i}", url=net.url(f"/{i}")) for i in range(8)]
                with pytest.raises(MediaRefused, match=r"took longer than 0.5 s"):
                    await loader.load(parts, SPEC)
                assert len(net.requests) == 4
            finally:
                loader.close()

    asyncio.run(main())


def test_bytes_of_a_request_are_bounded() -> None:
    config = MediaConfig(workers=1, max_total_bytes=len(PNG) + 10)
    with pytest.raises(MediaRefused, match=f"more than {len(PNG) + 10} bytes"):
        load([inline(PNG), inline(PNG)], config=config)
    with pytest.raises(MediaRefused, match="the limit is 10"):
        load([inline(PNG)], config=MediaConfig(workers=1, fetch=FetchPolicy(max_bytes=10)))


def test_tokens_come_by_id_then_by_text_else_not_at_all() -> None:
    assets = media_assets().media
    assert assets is not None
    tokenizer = Tokenizer.load(media_assets())
    by_text = media_assets(token_ids={}).media
    by_half = media_assets(
        token_ids={}, token_texts={"boi": "<|image>", "image": "two tokens", "eoi": "<image|>"}
    ).media
    wrong = media_assets(token_ids={"image": 5, "boi": BOI, "eoi": EOI}, token_texts={}).media
    assert by_text is not None and by_half is not None and wrong is not None
    assert resolve_tokens(assets, tokenizer).tokens == resolve_tokens(by_text, tokenizer).tokens
    assert resolve_tokens(assets, tokenizer).tokens["image"].soft_id == IMAGE
    assert not resolve_tokens(by_half, tokenizer).tokens
    assert not resolve_tokens(wrong, tokenizer).tokens


def test_what_checkpoints_declare() -> None:
    config = {
        "model_type": "gemma4",
        "image_token_id": 1,
        "eoa_token_index": 2,
        "vision_config": {},
        "audio_config": None,
    }
    found = read_media_assets(
        config, {"boi_token": {"content": "<|image>"}}, {"image_processor": {"max_soft_tokens": 560}}
    )
    assert found is not None
    assert found.token_ids == {"image": 1, "eoa": 2} and found.token_texts == {"boi": "<|image>"}
    assert found.kinds == {"image", "video"} and found.towers and found.image_budget == 560
    unified = read_media_assets({"model_type": "gemma4_unified"}, {}, {})
    assert unified is not None and unified.kinds == {"image", "video", "audio"} and not unified.towers
    assert read_media_assets({"model_type": "llama"}, {}, {}) is None
    with pytest.raises(CheckpointError, match="is 99, expected one of 70"):
        read_media_assets(config, {}, {"image_processor": {"max_soft_tokens": 99}})


def test_files_of_the_media_root(tmp_path: Path) -> None:
    root = tmp_path / "media"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.png").write_bytes(PNG)
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    assert read_local(f"file://{root}/sub/a%20b.png", root, 10**6) == PNG
    assert read_local(f"FILE:{root}/sub/a b.png", root, 10**6) == PNG
    for path in (
        "link",
        "folder/secret",
        "../secret",
        "sub/%2e%2e/../../secret",
        "sub",
        "missing",
        "",
        "sub/a%00b",
    ):
        with pytest.raises(MediaRefused, match="the address is not allowed"):
            read_local(f"file://{root}/{path}", root, 10**6)
    for url in (f"file://host{root}/sub/a b.png", "file:relative", f"file://{tmp_path}/secret"):
        with pytest.raises(MediaRefused):
            read_local(url, root, 10**6)
    with pytest.raises(MediaRefused):
        read_local(f"file://{root}/sub/a b.png", None, 10**6)
    with pytest.raises(MediaRefused, match="the limit is 5"):
        read_local(f"file://{root}/sub/a b.png", root, 5)


def test_models_without_towers_take_raw_frames_and_merged_patches() -> None:
    unified = MediaSpec(tokens=SPEC.tokens, towers=False, image_budget=70)
    picture, tone = load([inline(PNG), inline(WAV, "audio")], unified)
    assert picture.blocks[0].arrays["patches"].shape == (63, 6912)
    assert tone.blocks[0].arrays["raw"].shape == (25, 640)


def test_a_part_must_be_named_by_the_dialect() -> None:
    from ingle.text.messages import normalise

    with pytest.raises(InvalidRequest, match="take text parts here"):
        normalise([{"role": "user", "content": [image()]}])
