"""Train `tiny-gemma4` and its drafter with the reference implementation (transformers 5.24, torch 2.13, CPU).

    python scripts/tiny_gemma4/train.py OUT [--steps N] [--drafter-steps N] [--resume]

Needs espeak-ng for the spoken digits, and `src` and `benchmarks` on PYTHONPATH. Features are those of
`ingle.media`, which equal the reference's bit for bit. About an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny_world as world
import tokenizer as own_tokenizer
import torch
from tokenizer import IDS
from torch.nn.functional import cross_entropy

_library = torch.library.Library(
    "torchvision", "DEF"
)  # a torchvision built for CUDA lacks these beside CPU torch
for _name in ("nms", "qnms"):
    _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import (  # noqa: E402
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4VisionConfig,
    PreTrainedTokenizerFast,
)

from ingle.media.audio.mel import log_mel  # noqa: E402
from ingle.media.audio.tokens import mel_frames, soft_tokens  # noqa: E402
from ingle.media.image.gemma4 import patches, scaled  # noqa: E402

HERE = Path(__file__).parent
TEMPLATE = (HERE / "chat_template.jinja").read_text()
S, F = "sliding_attention", "full_attention"
BUDGET = 70


def configuration() -> Gemma4Config:
    text = Gemma4TextConfig(
        vocab_size=own_tokenizer.VOCAB_SIZE, vocab_size_per_layer_input=own_tokenizer.VOCAB_SIZE,
        hidden_size=96, intermediate_size=192, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1,
        head_dim=32, global_head_dim=64, sliding_window=64, layer_types=[S, S, F, S, S, F],
        hidden_size_per_layer_input=16, num_kv_shared_layers=2, use_double_wide_mlp=True,
        final_logit_softcapping=30.0, max_position_embeddings=8192,
        pad_token_id=IDS["<pad>"], eos_token_id=IDS["<eos>"], bos_token_id=IDS["<bos>"],
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=16, position_embedding_size=256, use_clipped_linears=True,
    )  # fmt: skip
    audio = Gemma4AudioConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, subsampling_conv_channels=[128, 16],
        output_proj_dims=96, use_clipped_linears=True,
    )  # fmt: skip
    return Gemma4Config(
        text_config=text, vision_config=vision, audio_config=audio,
        boi_token_id=IDS["<|image>"], image_token_id=IDS["<|image|>"], eoi_token_id=IDS["<image|>"],
        boa_token_id=IDS["<|audio>"], audio_token_id=IDS["<|audio|>"], eoa_token_index=IDS["<audio|>"],
        video_token_id=IDS["<|video|>"],
    )  # fmt: skip


@torch.no_grad()
def initialise(model: torch.nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf.startswith(("input_m", "output_m")):  # the clipped linears' bounds
            tensor.fill_(math.copysign(40.0, -1 if leaf.endswith("min") else 1))
        elif leaf == "layer_scalar":
            tensor.fill_(1.0)
        elif "q_norm" in name or "k_norm" in name:  # attention has scale 1
            tensor.fill_(tensor.numel() ** -0.25)
        elif "position_embedding_table" in name:
            tensor.normal_(0, 0.2)
        elif "embed_tokens_per_layer" in name:
            tensor.normal_(0, 0.25)
        elif "embed_tokens" in name:
            tensor.normal_(0, tensor.shape[-1] ** -0.5)
        elif leaf == "weight" and tensor.ndim == 1:
            tensor.fill_(0.5 if "post_" in name else 1.0)
        elif tensor.ndim >= 2 and tensor.is_floating_point():
            tensor.normal_(0, math.prod(tensor.shape[1:]) ** -0.5)


@dataclass
class Batch:
    kind: str
    ids: torch.Tensor
    labels: torch.Tensor  # -100 where nothing is learned
    features: dict[str, torch.Tensor]
    facts: torch.Tensor  # of each picture: number of its shape, colour and digit, -100 where it has none


FACTS = {"shape": world.SHAPES, "colour": tuple(world.COLOURS), "digit": tuple("0123456789")}


class Writer:
    """Questions as token ids, in the form that a server's prompts have."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", chat_template=TEMPLATE
        )

    def prompt(self, q: world.Question) -> str:
        content: Any = [{"type": "text", "text": q.text}]
        if q.kind != "text":
            content.insert(0, {"type": q.kind})
        return self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tools=[world.WEATHER] if q.call else None,
            enable_thinking=q.thinking,
            add_generation_prompt=True,
            tokenize=False,
        )

    @staticmethod
    def answer(q: world.Question) -> str:
        if q.call:
            arguments = ",".join(f'{k}:<|"|>{v}<|"|>' for k, v in q.call["arguments"].items())
            return f"<|tool_call>call:{q.call['name']}{{{arguments}}}<tool_call|><|tool_response>"
        if q.thinking:
            return f"<|channel>thought\n{q.text}\n<channel|>{q.answer}<turn|>"
        return q.answer + "<turn|>"

    def encode(self, q: world.Question, soft: Sequence[int]) -> tuple[list[int], int]:
        """Ids of prompt and answer, and where the answer begins; `soft` are the sizes of the blocks."""
        text = self.prompt(q)
        if q.kind == "video":
            blocks = [f"{i // 60:02d}:{i % 60:02d} <|image><|video|><image|>" for i in range(len(soft))]
            text = text.replace("<|video|>", " ".join(blocks))
        text = text.replace("<|audio|>", "<|audio><|audio|><audio|>")
        if q.kind == "image":
            text = text.replace("<|image|>", "<|image><|image|><image|>")
        ids: list[int] = []
        sizes = iter(soft)
        places = {IDS["<|image|>"], IDS["<|audio|>"], IDS["<|video|>"]}
        for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [token] * (next(sizes) if token in places else 1)
        return ids + self.tokenizer(self.answer(q), add_special_tokens=False)["input_ids"], len(ids)


def make_batch(questions: Sequence[world.Question], writer: Writer) -> Batch:
    kind = questions[0].kind
    rows: list[tuple[list[int], int]] = []
    features: dict[str, torch.Tensor] = {}
    facts: list[list[int]] = []
    if kind in ("image", "video"):
        pictures = [(q.picture,) if q.picture is not None else q.frames for q in questions]
        made = [[patches(scaled(p, BUDGET)) for p in group] for group in pictures]
        rows = [writer.encode(q, [len(m[0]) // 9 for m in g]) for q, g in zip(questions, made, strict=True)]
        flat = [m for group in made for m in group]
        facts = [
            [options.index(q.facts[name]) if name in q.facts else -100 for name, options in FACTS.items()]
            for q, group in zip(questions, made, strict=True)
            for _ in group
        ]
        names = ("pixel_values", "image_position_ids")
        if kind == "video":
            names = ("pixel_values_videos", "video_position_ids")
            features["num_frames_per_video"] = torch.tensor([len(g) for g in made])
        features[names[0]] = torch.tensor(np.stack([m[0] for m in flat]))
        features[names[1]] = torch.tensor(np.stack([m[1] for m in flat]), dtype=torch.long)
    elif kind == "audio":
        sounds = [q.sound for q in questions if q.sound is not None]
        mels = [log_mel(s)[0] for s in sounds]
        most = max(len(m) for m in mels)
        valid = [mel_frames(len(s)) for s in sounds]
        features["input_features"] = torch.tensor(
            np.stack([np.pad(m, ((0, most - len(m)), (0, 0))) for m in mels])
        )
        features["input_features_mask"] = torch.arange(most)[None] < torch.tensor(valid)[:, None]
        rows = [writer.encode(q, [soft_tokens(len(s))]) for q, s in zip(questions, sounds, strict=True)]
    else:
        rows = [writer.encode(q, []) for q in questions]
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for i, (tokens, start) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, start : len(tokens)] = torch.tensor(tokens[start:])
    return Batch(kind, ids, labels, features, torch.tensor(facts))


def spoken(voices: Sequence[str]) -> Any:
    """Every digit by every voice in several speeds and pitches, once; then drawn from."""
    pool = {
        digit: [world.speak(word, v, speed, pitch) for v in voices for speed in (135, 155, 175) for pitch in (35, 50, 65)]
        for digit, word in enumerate(world.NUMBERS)
    }  # fmt: skip

    def say(digit: int, rng: np.random.Generator) -> world.Sound:
        sound = pool[digit][int(rng.integers(len(pool[digit])))]
        stretch = rng.uniform(0.88, 1.12)
        places = np.arange(int(len(sound) * stretch)) / stretch
        return np.interp(places, np.arange(len(sound)), sound).astype(np.float32)

    return say


def produce(folder: Path, seed: int, sizes: dict[str, int], out: Any) -> None:
    """Batches without end, one of each kind after the other."""
    torch.set_num_threads(1)
    writer, say = Writer(folder), spoken(world.VOICES)
    rng = np.random.default_rng(seed)
    while True:
        for kind, count in sizes.items():
            size = world.size_of(rng)
            match kind:
                case "image":
                    made = [
                        (world.shape_picture if rng.integers(3) == 0 else world.digit_picture)(rng, size)
                        for _ in range(count)
                    ]
                case "video":
                    made = [world.clip(rng, size) for _ in range(count)]
                case "audio":
                    made = [
                        world.tone(rng) if rng.integers(4) == 0 else world.spoken_digit(rng, say)
                        for _ in range(count)
                    ]
                case _:
                    made = [world.text_task(rng) for _ in range(count)]
            b = make_batch(made, writer)
            arrays = {name: value.numpy() for name, value in b.features.items()}
            for name in arrays:
                if name.startswith("pixel_values"):  # a quarter of the bytes to hand over
                    arrays[name] = np.rint(arrays[name] * 255).astype(np.uint8)
            out.put((b.kind, b.ids.numpy(), b.labels.numpy(), arrays, b.facts.numpy()))


def loss_of(model: Any, batch: Batch) -> tuple[torch.Tensor, float]:
    types = torch.zeros_like(batch.ids)
    for number, name in ((1, "<|image|>"), (2, "<|video|>"), (3, "<|audio|>")):
        types[batch.ids == IDS[name]] = number
    output = model.model(
        input_ids=batch.ids,
        attention_mask=torch.ones_like(batch.ids),
        mm_token_type_ids=types,
        use_cache=False,
        **batch.features,
    )
    places = batch.labels[:, 1:] != -100
    logits = model.lm_head(output.last_hidden_state[:, :-1][places])
    logits = 30 * torch.tanh(logits / 30)
    wanted = batch.labels[:, 1:][places]
    loss = cross_entropy(logits, wanted)
    return loss, (logits.argmax(-1) == wanted).float().mean().item()


class Seer(torch.nn.Module):
    """A helper of the training, not of the model: soft tokens of a picture should say what is in it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        size = model.config.text_config.hidden_size
        self.heads = torch.nn.ModuleList(
            [torch.nn.Linear(2 * size, len(options)) for options in FACTS.values()]
        )
        model.model.embed_vision.register_forward_hook(self._keep)
        self.seen: torch.Tensor | None = None

    def _keep(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        self.seen = output

    def forward(self, batch: Batch) -> torch.Tensor:
        pictures = self.seen.reshape(len(batch.facts), -1, self.seen.shape[-1])
        summary = torch.cat([pictures.mean(1), pictures.amax(1)], -1)
        losses = [
            cross_entropy(head(summary), batch.facts[:, i], reduction="sum")
            / max(1, (batch.facts[:, i] >= 0).sum())
            for i, head in enumerate(self.heads)
        ]
        return torch.stack(losses).sum()


def train(
    folder: Path, steps: int, minutes: float, sizes: dict[str, int], rate: float, resume: bool, see: bool
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    if resume:
        model: Any = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    else:
        model = Gemma4ForConditionalGeneration(configuration()).float()
        initialise(model)
    model.train()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e3:.0f}k parameters", flush=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(8)
    maker = context.Process(target=produce, args=(folder, 1 + int(resume), sizes, queue), daemon=True)
    maker.start()
    seer = Seer(model)
    watched: dict[str, list[float]] = {"facts": []}
    parameters = [*model.parameters(), *seer.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    began, seen = time.time(), {kind: [] for kind in sizes}
    for step in range(steps):
        part = max(step / steps, (time.time() - began) / 60 / minutes)
        if part >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50) * (0.5 * (1 + math.cos(math.pi * part)) + 0.01)
        optimiser.zero_grad()
        for _ in sizes:
            kind, ids, labels, features, facts = queue.get()
            tensors = {
                name: torch.tensor(value) / 255 if value.dtype == np.uint8 else torch.tensor(value)
                for name, value in features.items()
            }
            batch = Batch(kind, torch.tensor(ids), torch.tensor(labels), tensors, torch.tensor(facts))
            if see:
                pixels, positions = tensors["pixel_values"], tensors["image_position_ids"]
                model.model.get_image_features(pixels, positions, return_dict=True)
                loss, right = torch.zeros(()), 0.0
            else:
                loss, right = loss_of(model, batch)
            seen[kind].append((loss.item(), right))
            if kind in ("image", "video"):
                extra = seer(batch)
                watched["facts"].append(extra.item())
                loss = loss + extra
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 24:
            report = " ".join(
                f"{k} {np.mean([a for a, _ in v[-25:]]):.3f}/{np.mean([b for _, b in v[-25:]]):.3f}"
                for k, v in seen.items()
            )
            print(
                f"{step + 1} {time.time() - began:.0f}s {report} facts {np.mean(watched['facts'][-50:]):.3f}",
                flush=True,
            )
        if step % 250 == 249:
            save(model, folder)
    save(model, folder)
    maker.terminate()


def save(model: Any, folder: Path) -> None:
    """The checkpoint in bfloat16, beside the tokenizer's files."""
    model.save_pretrained(folder / "float32")
    for name in ("config.json", "model.safetensors"):
        (folder / "float32" / name).rename(folder / name)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].setdefault("global_head_dim", 64)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    ends = [IDS["<eos>"], IDS["<turn|>"], IDS["<|tool_response>"]]
    generation = {
        "bos_token_id": IDS["<bos>"],
        "eos_token_id": ends,
        "pad_token_id": IDS["<pad>"],
        "temperature": 0.0,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    processor = {
        "image_processor": {"max_soft_tokens": BUDGET},
        "video_processor": {"max_soft_tokens": BUDGET},
    }
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=1) + "\n")


def corpus() -> list[str]:
    rng = np.random.default_rng(0)
    texts = ["What shape is it?", "What colour is the shape?", "Which digit is shown?", "Which digit is spoken?",
             "What tone is it?", "Which way does it move?", "declaration:get_weather{description:Weather of a city",
             "user\n", "model\n", "system\n", "thought\n", "parameters", "properties", "required", "STRING", "OBJECT",
             "call:get_weather{city:", "response:", "unknown", "value", "type:", "Name of the city"] * 30  # fmt: skip
    texts += [*world.COLOURS, *world.SHAPES, *world.WAYS, *world.TONES, *world.CITIES] * 30
    texts += list(world.LETTERS) * 50
    return texts + [q.text for q in (world.text_task(rng) for _ in range(2000)) if "Repeat" not in q.text]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--sizes", default='{"image": 16, "audio": 16, "video": 6, "text": 24}')
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--see", action="store_true", help="teach the vision tower alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        own_tokenizer.write(options.out, own_tokenizer.build(corpus()), TEMPLATE)
    sizes = json.loads(options.sizes)
    train(options.out, options.steps, options.minutes, sizes, options.rate, options.resume, options.see)


if __name__ == "__main__":
    main()
