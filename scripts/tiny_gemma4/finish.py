"""Put a trained `tiny-gemma4` into its place: weights in bfloat16, settings that are not used left out.

python scripts/tiny_gemma4/finish.py TRAINED src/ingle/bundled/tiny-gemma4
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FILES = ("config.json", "generation_config.json", "processor_config.json", "tokenizer.json",
         "tokenizer_config.json", "chat_template.jinja")  # fmt: skip


def main(trained: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.to(torch.bfloat16) for name, value in load_file(trained / "model.safetensors").items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name in FILES:
        shutil.copy(trained / name, out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
