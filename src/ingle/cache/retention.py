"""How many past positions a layer keeps: all of them, or a window and some slack."""

from __future__ import annotations

from dataclasses import dataclass

from ingle.contracts.cache import KEY_BLOCK


@dataclass(frozen=True, slots=True)
class Retention:
    """`window` None keeps everything. Otherwise a query sees `window` positions, its own included.

    `slack` more positions stay behind the window, so that up to `slack` tokens can be taken back
    (rejected drafts) and the window before them is still whole.
    """

    window: int | None = None
    slack: int = 0

    def first_kept(self, length: int) -> int:
        """First position that a row of `length` tokens must still hold, rounded down to KEY_BLOCK."""
        if self.window is None:
            return 0
        needed = max(0, length - self.slack - self.window + 1)
        return needed // KEY_BLOCK * KEY_BLOCK
