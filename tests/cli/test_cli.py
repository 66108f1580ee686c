"""The command line as a person meets it: quick help, plain errors, exit codes, piped chat."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from ingle import compose
from ingle.env import Environment
from ingle.errors import ConfigError

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


def ingle(*arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ingle.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )


def test_help_names_every_command_and_imports_little() -> None:
    code = (
        "import sys\nfrom ingle.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'mlx', 'numpy', 'torch', 'transformers', 'tokenizers', 'starlette', 'uvicorn', 'jinja2', "
        "'huggingface_hub', 'socket', 'ssl', 'asyncio'}\nprint(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"
    for command in ("chat", "serve", "pull", "models", "fit", "bench", "doctor"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["chat", "serve", "pull", "models", "fit", "bench", "doctor"])
def test_every_command_has_help(command: str) -> None:
    done = ingle(command, "--help")
    assert done.returncode == 0
    assert "usage: ingle " + command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "COMMAND"),
        (["frobnicate"], 2, "invalid choice"),
        (["serve", "/no/such/model"], 1, "/no/such/model does not exist"),
        (["pull", "smollm2-135m-instuct"], 1, "did you mean smollm2-135m-instruct?"),
        (["serve", "--port", "99999"], 2, "port must be 0 to 65535, got 99999"),
        (["serve", "--api-key-file", "/no/such/file"], 2, "/no/such/file"),
        (["chat", "--max-rows", "0"], 2, "max_rows must be 1 to 1024, got 0"),
        (["chat", "--dtype", "int4"], 2, "dtype must be"),
        (["serve", "--memory", "lots"], 2, "'lots' is no size"),
        (["serve", "--max-gap-ms", "0"], 2, "max_gap_ms must be positive, got 0.0"),
        (["fit", "/no/such/model"], 1, "/no/such/model does not exist"),
        (["pull", "no-such-org/no-such-model"], 1, "hub"),
    ],
)
def test_mistakes_get_one_plain_line(arguments: list[str], code: int, message: str) -> None:
    done = ingle(*arguments, INGLE_OFFLINE="1")
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_tokenizer_says_so(tmp_path: Path) -> None:
    done = ingle("chat", str(FIXTURES / "llama"), "--prompt", "hi")
    assert done.returncode == 1
    assert "tokenizer.json" in done.stderr


def test_offline_without_the_model(tmp_path: Path) -> None:
    done = ingle("chat", "--prompt", "hi", "--offline", INGLE_MODELS_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "offline" in done.stderr


def test_models_and_doctor(tmp_path: Path) -> None:
    listed = ingle("models", INGLE_MODELS_DIR=str(tmp_path))
    assert listed.returncode == 0
    assert "not fetched" in listed.stdout and str(tmp_path) in listed.stdout
    doctor = ingle("doctor", INGLE_MODELS_DIR=str(tmp_path))
    assert doctor.returncode == 0
    assert "back end cpu" in doctor.stdout


def test_the_environment_is_checked() -> None:
    assert Environment.read({"HOME": "/h", "INGLE_OFFLINE": "1"}).offline
    for name, value in (("INGLE_OFFLINE", "maybe"), ("INGLE_THREADS", "many")):
        with pytest.raises(ConfigError, match=name):
            Environment.read({name: value})


@pytest.mark.model
def test_piped_chat_remembers_and_forgets(default_model_path: Path) -> None:
    lines = "My name is Ada.\n/help\n/reset\nWhat is the capital of France?\n/exit\n"
    done = ingle("chat", str(default_model_path), "--temperature", "0", "--max-tokens", "24", stdin=lines)
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert done.stderr.count("tokens/s]") == 2


@pytest.mark.model
def test_serve_says_one_ready_line_answers_and_stops(default_model_path: Path) -> None:
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ingle.cli",
            "serve",
            str(default_model_path),
            "--port",
            "0",
            "--name",
            "tiny",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    found = re.fullmatch(
        r"Ingle \S+ serves tiny at (http://127\.0\.0\.1:\d+)/v1 \(.*\)\n", server.stdout.readline()
    )
    assert found is not None
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 8}
    answer = httpx2.post(found[1] + "/v1/chat/completions", content=json.dumps(body), timeout=60)
    assert answer.status_code == 200
    server.send_signal(signal.SIGTERM)
    rest, _ = server.communicate(timeout=30)
    assert rest == ""
    assert server.returncode == 0


def test_fit_says_what_a_context_needs() -> None:
    folder = str(FIXTURES / "gemma3")
    done = ingle("fit", folder, "--ctx", "128", "--rows", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"KV, \d+ sliding \d+ layers +\d+\.\d MiB", done.stdout)
    assert "It fits." in done.stdout
    tight = ingle("fit", folder, "--ctx", "128", "--memory", "100KB")
    assert (tight.returncode, "does NOT fit" in tight.stdout) == (1, True)
    wrong = ingle("fit", folder, "--ctx", "999999999")
    assert wrong.returncode == 2
    assert "--ctx must be 1 to" in wrong.stderr


@pytest.mark.model
def test_fit_tells_what_the_engine_will_weigh(default_model_path: Path) -> None:
    loaded = compose.load(default_model_path, name="m")
    weighed = loaded.engine.stats().weights_bytes
    loaded.engine.close()
    told = compose.fit(default_model_path, tokens=1000, rows=1).weights
    assert weighed <= told * 1.001 and told <= weighed * 1.001


@pytest.mark.parametrize(
    ("model", "drafter", "code", "message"),
    [
        ("tiny-gemma4", str(FIXTURES / "llama"), 2, "vocabulary has 160 tokens, its target's 512"),
        ("tiny-gemma4", str(FIXTURES / "gemma4_e_assistant"), 2, "target of vocabulary 96, this one has 512"),
        (
            str(FIXTURES / "llama"),
            str(FIXTURES / "gemma4_e_assistant"),
            2,
            "family gemma4, this one has llama",
        ),
        ("tiny-gemma4", "tiny-gemma5", 1, "is no file or folder here"),
        ("tiny-gemma4-assistant", "auto", 1, "this is an assistant: it drafts for the model"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_at_start(
    model: str, drafter: str, code: int, message: str
) -> None:
    done = ingle("serve", model, "--port", "0", "--drafter", drafter)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_a_draft_model_must_mean_the_same_tokens(tmp_path: Path) -> None:
    """Equal sizes are not enough."""
    bundled = Path(compose.__file__).parent / "bundled" / "tiny-gemma4"
    other = tmp_path / "other"
    shutil.copytree(bundled, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    (first, one), (second, two) = list(vocab.items())[300:302]
    vocab[first], vocab[second] = two, one
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = ingle("serve", "tiny-gemma4", "--port", "0", "--drafter", str(other))
    assert done.returncode == 2
    assert re.search(r"another vocabulary than its target: token '.*' is number \d+ there", done.stderr)
