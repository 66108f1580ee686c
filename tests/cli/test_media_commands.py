import json
from pathlib import Path

import pytest

from ingle.cli.main import main
from support import media_corpus as made


def test_check_url_gives_one_verdict_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-url", "--json", "http://127.0.0.1/", "https://example.com/a", "", "ht\ntp://x"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["verdict"] for line in lines] == ["reject", "allow", "reject", "reject"]
    assert all(set(line) == {"url", "verdict", "reason"} and line["reason"] for line in lines)


def test_check_url_follows_the_flags_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-url", "--allow-private", "http://10.0.0.1/", "http://169.254.169.254/"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("allow") and out[1].startswith("reject")
    assert main(["check-url", "--allow-network", "10.0.0.0/99", "http://10.0.0.1/"]) == 2


def test_inspect_tells_what_decoding_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, text = tmp_path / "a.wav", tmp_path / "b.png"
    sound.write_bytes(made.riff(made.fmt(), made.chunk(b"data", made.PCM16.tobytes())))
    text.write_text("hello")
    files = [str(sound), str(text), str(tmp_path / "missing")]
    assert main(["inspect", "--json", *files]) == 0
    heard, refused, missing = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert heard["frames"] == 16_000 and heard["soft_tokens"] == 25 and heard["kind"] == "audio"
    assert refused["code"] == "media_unsupported" and "no known" in refused["refused"]
    assert missing["code"] == "media_unreadable"
    assert main(["inspect", str(sound)]) == 0
    assert "audio, format wav/pcm, sample_rate 16000" in capsys.readouterr().out
