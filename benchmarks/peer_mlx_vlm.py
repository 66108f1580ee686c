"""Rates of mlx-vlm on a folder in its own format. Usage: peer_mlx_vlm.py FOLDER PROMPT TOKENS THREADS."""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx

try:  # a torchvision built for CUDA lacks these beside CPU torch
    import torch

    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except ImportError:
    pass

from mlx_vlm.utils import load_model

mx.set_default_device(mx.cpu)
folder, prompt, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model = load_model(folder, lazy=False).language_model
cache = model.make_cache()
start = time.perf_counter()
logits = model(mx.array([[5] * prompt]), cache=cache).logits
mx.eval(logits)
prefill = prompt / (time.perf_counter() - start)
start = time.perf_counter()
for _ in range(tokens):
    logits = model(mx.argmax(logits[:, -1:], axis=-1), cache=cache).logits
    mx.eval(logits)
print(json.dumps({"prefill": prefill, "decode": tokens / (time.perf_counter() - start)}))
