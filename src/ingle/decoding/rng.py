"""Counter-based noise: a key that depends on (seed, position) and on nothing else.

Nothing is drawn from a stream, so batch mates, retries and drafts cannot shift a sample.
"""

from __future__ import annotations

_MASK = 2**64 - 1


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words for a Threefry generator whose counter is the token.

    Seed and position are mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), so that
    neighbouring seeds and positions share no noise.
    """
    value = _mix((_mix(seed) + position) & _MASK)
    return value >> 32, value & 0xFFFFFFFF


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
