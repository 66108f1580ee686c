"""Train the drafter of `tiny-gemma4` on what the target itself says, and count what it would accept.

    python scripts/tiny_gemma4/drafter.py TARGET OUT [--steps 700]

The drafter reads the target's last sliding and last full layer that own KV, at position P - 1 for P valid
entries, and the last `window` of the sliding ones; its input is the embedding of the last token and the
target's hidden state that produced it. Acceptance is measured on held-out questions, greedily, in rounds of
three drafts: accepted drafts by drafts made.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tiny_world as world
import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer import IDS, VOCAB_SIZE
from train import F, S, Writer, make_batch, spoken
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
)

WINDOW, DRAFTS = 64, 3


def drafter() -> Any:
    text = Gemma4TextConfig(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, global_head_dim=64, sliding_window=WINDOW, layer_types=[S, S, S, F],
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, num_kv_shared_layers=4,
        max_position_embeddings=8192, pad_token_id=IDS["<pad>"], eos_token_id=IDS["<eos>"], bos_token_id=IDS["<bos>"],
    )  # fmt: skip
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=96, use_ordered_embeddings=False)
    model = Gemma4AssistantForCausalLM(config).float()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "q_norm" in name:
                tensor.fill_(tensor.numel() ** -0.25)
            elif name.endswith("layer_scalar") or (tensor.ndim == 1 and tensor.is_floating_point()):
                tensor.fill_(1.0)
            elif tensor.ndim >= 2 and tensor.is_floating_point():
                tensor.normal_(0, tensor.shape[-1] ** -0.5)
    return model


def questions(rng: np.random.Generator, count: int, say: Any) -> list[world.Question]:
    """Of one kind, so that they make one batch."""
    size = world.size_of(rng)
    match int(rng.integers(6)):
        case 0:
            return [world.digit_picture(rng, size) for _ in range(count)]
        case 1:
            return [world.spoken_digit(rng, say) for _ in range(count)]
        case _:
            return [world.text_task(rng) for _ in range(count)]


@torch.no_grad()
def run(target: Any, ids: torch.Tensor, features: dict[str, torch.Tensor]) -> Any:
    types = torch.zeros_like(ids)
    for number, name in ((1, "<|image|>"), (2, "<|video|>"), (3, "<|audio|>")):
        types[ids == IDS[name]] = number
    return target(
        input_ids=ids, mm_token_type_ids=types, use_cache=False, output_hidden_states=True,
        return_shared_kv_states=True, **features,
    )  # fmt: skip


def donors(output: Any, valid: int) -> dict[str, Any]:
    """Keys and values of the first `valid` tokens: all of the full layer, the last WINDOW of the sliding one."""
    first = max(0, valid - WINDOW)
    return {
        kind: tuple(x[:, :, first:valid] if kind == S else x[:, :, :valid] for x in states)
        for kind, states in output.shared_kv_states.items()
    }


def draft(model: Any, embed: Any, token: torch.Tensor, hidden: torch.Tensor, kv: Any, at: int) -> Any:
    return model(
        inputs_embeds=torch.cat([embed(token), hidden], -1),
        position_ids=torch.full(token.shape, at),
        attention_mask=None,
        shared_kv_states=kv,
    )


def train(target: Any, model: Any, writer: Writer, steps: int) -> None:
    rng, say, embed = np.random.default_rng(3), spoken(world.VOICES[:6]), target.get_input_embeddings()
    optimiser = torch.optim.Adam(model.parameters(), lr=0)
    began, seen = time.time(), []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        made = questions(rng, 12, say)
        batch = make_batch(made, writer)
        output = run(target, batch.ids, batch.features)
        # Where the answer of every row of the batch is under way; the target's own next tokens are the truth.
        starts = (batch.labels >= 0).int().argmax(1)
        ends = (batch.labels >= 0).sum(1) + starts
        own = output.logits.argmax(-1)
        loss, count = torch.zeros(()), 0
        for row in range(len(made)):
            begin, end = int(starts[row]), int(ends[row])
            valid = int(rng.integers(begin, max(begin + 1, end - 1)))
            one = {k: tuple(x[row : row + 1] for x in v) for k, v in donors(output, valid).items()}
            hidden = output.hidden_states[-1][row : row + 1, valid - 1 : valid]
            for offset in range(DRAFTS):
                if valid + offset + 1 > end:
                    break
                token = batch.ids[row : row + 1, valid + offset : valid + offset + 1]
                got = draft(model, embed, token, hidden, one, valid - 1)
                loss = loss + cross_entropy(got.logits[:, 0], own[row : row + 1, valid + offset])
                hidden, count = got.last_hidden_state, count + 1
        if not count:
            continue
        loss = loss / count
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        seen.append(loss.item())
        if step % 50 == 49:
            print(f"{step + 1} {time.time() - began:.0f}s loss {np.mean(seen[-50:]):.3f}", flush=True)


@torch.no_grad()
def acceptance(target: Any, model: Any, writer: Writer, count: int) -> dict[str, Any]:
    """By kind of question: accepted and made drafts of greedy answers."""
    rng, say, embed = (
        np.random.default_rng(world.HELD_OUT + 1),
        spoken(world.UNHEARD),
        target.get_input_embeddings(),
    )
    totals: dict[str, list[int]] = {}
    for _ in range(count):
        (question,) = questions(rng, 1, say)
        batch = make_batch([question], writer)
        prompt = int((batch.labels >= 0).int().argmax())
        ids = batch.ids[:, :prompt].tolist()[0]
        ends = {IDS["<turn|>"], IDS["<eos>"], IDS["<|tool_response>"]}
        output = run(target, torch.tensor([ids]), batch.features)
        ids.append(int(output.logits[0, -1].argmax()))
        made, right = 0, 0
        while ids[-1] not in ends and len(ids) < prompt + 60:
            valid = len(ids) - 1
            kv, hidden = donors(output, valid), output.hidden_states[-1][:, valid - 1 : valid]
            drafts: list[int] = []
            token = torch.tensor([[ids[-1]]])
            for _ in range(DRAFTS):
                got = draft(model, embed, token, hidden, kv, valid - 1)
                token, hidden = got.logits.argmax(-1), got.last_hidden_state
                drafts.append(int(token))
                if drafts[-1] in ends:
                    break
            output = run(target, torch.tensor([[*ids, *drafts]]), batch.features)
            said = output.logits[0, valid:].argmax(-1).tolist()
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == said[accepted]:
                accepted += 1
            made, right = made + len(drafts), right + accepted
            ids += said[: accepted + 1]
            stop = next((i for i, token in enumerate(ids[prompt:]) if token in ends), None)
            if stop is not None:
                ids = ids[: prompt + stop + 1]
        total = totals.setdefault(question.name, [0, 0])
        total[0], total[1] = total[0] + right, total[1] + made
    right, made = (sum(t[i] for t in totals.values()) for i in (0, 1))
    return {"accepted": right, "made": made, "rate": round(right / max(1, made), 3), "by": totals}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=700)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    target = Gemma4ForConditionalGeneration.from_pretrained(
        options.target, dtype=torch.float32, attn_implementation="eager"
    )
    target.eval()
    model, writer = drafter(), Writer(options.target)
    train(target, model, writer, options.steps)
    model.eval()
    model.to(torch.bfloat16).save_pretrained(options.out)
    model = Gemma4AssistantForCausalLM.from_pretrained(
        options.out, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    print(json.dumps(acceptance(target, model, writer, 150)))


if __name__ == "__main__":
    main()
