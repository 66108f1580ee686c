"""What a row's tokens must follow: a compiled grammar, and where one row is in it. No tensors.

The allowed tokens are a function of the grammar and of the row's output alone, so that a constrained
answer is as independent of its neighbours, of drafts and of pauses as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

TokenMask: TypeAlias = NDArray[np.bool_]  # [vocabulary]: True for tokens that may come next


class Grammar(Protocol):
    """Compiled and immutable: many requests may share one, on any thread."""

    def start(self) -> GrammarState:
        """The state of a row that has no output yet."""
        ...


class GrammarState(Protocol):
    """Belongs to one row; used by the engine thread alone."""

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        ...

    def masks(self, drafts: Sequence[int]) -> list[TokenMask | None]:
        """What may come next, and behind each draft as far as drafts are allowed; the state stays as it is.

        None: anything. A mask always allows something: where nothing but the end may come, the stop tokens.

        Raises:
            GrammarFailed: the grammar went over a limit.
        """
        ...

    def advance(self, token: int) -> None:
        """`token` was put out."""
        ...


class GrammarFailed(Exception):
    """A grammar went over a limit while it was followed; the message is fit for the client."""
