"""The engines that Ingle is measured against: how they are built, and how each is asked for a rate.

llama.cpp is built from `llama-cpp-python`'s source package; mlx-lm and transformers run in an
environment of their own. All work on the same checkpoint file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ingle-benchmarks"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(*command: str | Path, **options: object) -> str:
    """The command's standard output. Its errors appear only when it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{command[0]} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return done.stdout


class LlamaCpp:
    """llama.cpp's own tools, which lie in `folder` (built when None is given)."""

    def __init__(self, folder: Path | None, threads: int) -> None:
        self.folder = self._build() if folder is None else self._find(folder)
        self._threads = str(threads)

    def _find(self, folder: Path) -> Path:
        for place in (folder, folder / "bin", folder / "build" / "bin"):
            if all((place / tool).exists() for tool in TOOLS):
                return place
        raise SystemExit(f"{folder} has no {', '.join(TOOLS)} (nor bin/ or build/bin/ in it)")

    def _build(self) -> Path:
        build = CACHE / "llama.cpp" / "build"
        if all((build / "bin" / tool).exists() for tool in TOOLS):
            return build / "bin"
        say("building llama.cpp (once, some 10 minutes on two cores)")
        source = CACHE / "llama.cpp" / "source"
        shutil.rmtree(source.parent, ignore_errors=True)
        source.mkdir(parents=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation")
        run(*pip, "--no-binary", ":all:", "llama_cpp_python", "--dest", source)
        archive = next(source.glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(source, filter="data")
        tree = next(source.glob("*/vendor/llama.cpp"))
        options = "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF"
        cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        run(cmake or "cmake", "-S", tree, "-B", build, *options.split())
        run(cmake or "cmake", "--build", build, "--target", *TOOLS, "-j", str(os.cpu_count() or 2))
        return build / "bin"

    def quantized(self, model: Path, *options: str) -> Path:
        """The model with its weights re-quantised to Q4_0, for llama.cpp's fastest products."""
        out = CACHE / f"{model.stem}-Q4_0{''.join(options)}.gguf"
        if not out.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            run(self.folder / "llama-quantize", "--allow-requantize", *options, model, out, "Q4_0")
        return out

    def prefill(self, model: Path, tokens: int) -> float:
        return self._bench(model, "-p", str(tokens), "-n", "0")

    def decode(self, model: Path, tokens: int) -> float:
        return self._bench(model, "-p", "0", "-n", str(tokens))

    def _bench(self, model: Path, *what: str) -> float:
        command = (
            self.folder / "llama-bench",
            "-m",
            model,
            "-t",
            self._threads,
            "-r",
            "1",
            "-o",
            "json",
            *what,
        )
        return json.loads(run(*command, *what))[0]["avg_ts"]

    def streams(self, model: Path, count: int, prompt: int, tokens: int) -> float:
        sizes = ("-npp", str(prompt), "-ntg", str(tokens), "-npl", str(count), "-c", "4096")
        command = (self.folder / "llama-batched-bench", "-m", model, "-t", self._threads, *sizes)
        lines = run(*command, "--output-format", "jsonl").splitlines()
        return json.loads(next(line for line in lines if line.startswith("{")))["speed_tg"]

    def serve(self, model: Path, port: int, rows: int) -> subprocess.Popen[bytes]:
        """llama.cpp's own server, with room for `rows` streams and one long prompt."""
        sizes = ("-np", str(rows), "-c", str(8192 * 4), "--kv-unified")
        command = (
            self.folder / "llama-server",
            "-m",
            model,
            "-t",
            self._threads,
            "--port",
            str(port),
            *sizes,
        )
        return subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


class PythonPeer:
    """mlx-lm or transformers in an environment of their own (made when `python` is None)."""

    _REQUIREMENTS = ("mlx-lm", "torch==2.13.0", "transformers==5.24.0")

    def __init__(self, python: Path | None, threads: int) -> None:
        self._python = python or self._install()
        self._threads = str(threads)

    def _install(self) -> Path:
        import mlx.core as mx

        environment = CACHE / "python"
        python = environment / "bin" / "python"
        if not (environment / "ready").exists():
            say("installing mlx-lm and transformers (once)")
            run(sys.executable, "-m", "venv", environment)
            pip = (python, "-m", "pip", "install", "--quiet")
            run(*pip, f"mlx[cpu]=={mx.__version__}", *self._REQUIREMENTS)
            (environment / "ready").touch()
        return python

    def rates(self, name: str, folder: Path, prompt: int, tokens: int) -> dict[str, float]:
        """{"prefill": tok/s, "decode": tok/s} of one run."""
        script = HERE / f"peer_{name}.py"
        out = run(self._python, script, folder, str(prompt), str(tokens), self._threads)
        return json.loads(out.splitlines()[-1])
