"""Rates of transformers in bfloat16. Usage: peer_transformers.py FOLDER PROMPT TOKENS THREADS."""

import json
import sys
import time

import torch

_library = torch.library.Library("torchvision", "DEF")  # a torchvision built for CUDA lacks these
for _name in ("nms", "qnms"):
    _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import AutoModelForCausalLM  # noqa: E402

folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(int(sys.argv[4]))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
with torch.inference_mode():
    model(torch.ones((1, 8), dtype=torch.long))
    start = time.perf_counter()
    out = model(torch.ones((1, prompt), dtype=torch.long), use_cache=True, logits_to_keep=1)
    prefill = prompt / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(tokens):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
print(json.dumps({"prefill": prefill, "decode": tokens / (time.perf_counter() - start)}))
