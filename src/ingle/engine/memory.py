"""How many bytes rows and steps take, and how many this machine can give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ingle.contracts.cache import KEY_BLOCK, StateLayout


@dataclass(frozen=True, slots=True)
class RowMemory:
    """State of one row, in whole blocks of KEY_BLOCK positions; exact for native blocks.

    `drafters` are the layouts of what a draft source remembers of the row beside the target.
    """

    layout: StateLayout
    drafters: tuple[StateLayout, ...] = ()

    def row(self, tokens: int, window: int = 1) -> int:
        """Bytes of a row of `tokens`, at the most: while a step computes the last `window` of them."""
        total = 0
        for layout in (self.layout, *self.drafters):
            for number, kind in enumerate(layout.kinds):
                first = kind.retention.first_kept(max(0, tokens - window)) // KEY_BLOCK
                total += (_blocks(tokens) - first) * layout.block_bytes(number)
        return total + self._carried()

    def most(self, tokens: int, window: int) -> int:
        """The most bytes of a row until it has `tokens`, computed in windows of up to `window`."""
        return max(self.row(tokens), self.row(tokens, min(tokens, window)))

    def growth(self, tokens: int, new: int) -> int:
        """Bytes that a row of `tokens` takes more while it computes `new` tokens."""
        blocks = _blocks(tokens + new) - _blocks(tokens)
        return blocks * sum(
            layout.block_bytes(kind)
            for layout in (self.layout, *self.drafters)
            for kind in range(len(layout.kinds))
        )

    def own(self, tokens: int, shared: int) -> int:
        """Bytes of a row of `tokens` whose first `shared` blocks the prompt cache counts.

        What a window still looks at counts as the row's: the cache may let its share of that go.
        """
        total = self._carried()
        for layout in (self.layout, *self.drafters):
            for number, kind in enumerate(layout.kinds):
                first = kind.retention.first_kept(tokens) // KEY_BLOCK
                if kind.retention.window is None and layout is self.layout:
                    first = max(first, shared)
                total += max(0, _blocks(tokens) - first) * layout.block_bytes(number)
        return total

    def _carried(self) -> int:
        layouts = (self.layout, *self.drafters)
        return 4 * sum(math.prod(shape) for layout in layouts for shape in layout.recurrent)


def _blocks(tokens: int) -> int:
    return -(-tokens // KEY_BLOCK)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take: what the machine has free and its control groups allow.

    None where the system does not say (no /proc/meminfo).
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return max(0, min([free, *_cgroup_rooms(root)]))


def _cgroup_rooms(root: Path) -> list[int]:
    """Bytes left under each limit above this process (cgroup v2, then v1)."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms: list[int] = []
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = (
                root / "sys/fs/cgroup/memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            )
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            if place == base.parent:
                break
            try:
                limit, used = ((place / name).read_text().strip() for name in names)
                rooms.append(int(limit) - int(used))
            except (OSError, ValueError):  # no such file, or "max"
                continue
    return rooms
