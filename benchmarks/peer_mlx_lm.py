"""Rates of mlx-lm on a folder in its own format. Usage: peer_mlx_lm.py FOLDER PROMPT TOKENS THREADS."""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

folder, prompt, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model, _ = load_model(folder)
cache = make_prompt_cache(model)
start = time.perf_counter()
logits = model(mx.array([[1] * prompt]), cache=cache)
mx.eval(logits)
prefill = prompt / (time.perf_counter() - start)
start = time.perf_counter()
for _ in range(tokens):
    logits = model(mx.argmax(logits[:, -1:], axis=-1), cache=cache)
    mx.eval(logits)
print(json.dumps({"prefill": prefill, "decode": tokens / (time.perf_counter() - start)}))
