"""How a prompt names the time of a frame."""

from __future__ import annotations


def time_label(seconds: float) -> str:
    """mm:ss, cut to whole seconds."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
