"""What an engine says of itself to metrics and to people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters and gauges at one moment; counters only grow."""

    waiting: int  # requests accepted and not yet given a row, paused ones included
    running: int  # rows in prefill or decode
    steps: dict[str, int]  # by phase: "prefill", "decode", "mixed"
    step_seconds: dict[str, float]  # time in them, by phase
    prompt_tokens: int  # computed prompt tokens
    cached_tokens: int  # known tokens whose KV came from the prompt cache
    queried_tokens: int  # known tokens that the prompt cache was asked about
    cached_bytes: int  # KV that came from the prompt cache
    generated_tokens: int
    finished: dict[str, int]  # by finish reason
    delayed: int  # times that the first row of the queue had to wait for memory
    paused: int  # rows that gave up their memory and were computed again
    failed_steps: int
    kv_bytes: int  # of rows, what the prompt cache holds too not counted
    prompt_cache_bytes: int
    kv_limit_bytes: int  # both together stay below it
    weights_bytes: int
    predicted_bytes: int  # the highest prediction for a step so far: weights, KV and transients
    peak_bytes: int  # the highest measured
    encoded_media: int = 0  # pictures, frames and sounds that went through an encoder
    media_cache_hits: int = 0  # times that one was there already
    media_cache_bytes: int = 0
    drafted_tokens: int = 0  # proposed to the model
    accepted_tokens: int = 0  # of them those that it would have said itself
    drafting_seconds: float = 0.0  # time in the drafter
    failed_drafts: int = 0  # steps without drafts because the drafter raised
    grammar_masks: int = 0  # computed, one for each token that a grammar rules
    grammar_seconds: float = 0.0  # time in them
    alive: bool  # the engine thread runs
    last_step_age_s: float  # seconds since the engine thread last showed life
