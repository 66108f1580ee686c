"""Who waits, who runs, and who shares the decode batch: rows start, pause, join and leave here.

Used by the engine thread alone. Nothing here runs the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingle.contracts.cache import KEY_BLOCK, RowState
from ingle.contracts.state import Transaction
from ingle.engine.admission import Admission
from ingle.engine.batch import DecodeBatch
from ingle.engine.pace import Pace
from ingle.engine.rows import Row
from ingle.engine.scheduler import Plan, RowView, plan
from ingle.speculative.source import DraftSource

_log = logging.getLogger(__name__)


def _turn(row: Row) -> tuple[int, int]:
    """Who goes first, smallest first; who is paused, largest first."""
    return -row.request.priority, row.arrival


class Residents:
    """Rows by id. A row of `running` has a state of its own, or a place in `batch`, or starts over."""

    def __init__(
        self, admission: Admission, pace: Pace, max_rows: int, sources: Sequence[DraftSource] = ()
    ) -> None:
        self.admission, self.pace, self._sources = admission, pace, sources
        self.waiting: dict[str, Row] = {}
        self.running: dict[str, Row] = {}
        self.batch = DecodeBatch()
        self.paused = 0  # times that a row was
        self._max_rows = max_rows
        # What recurrent layers carry can be kept only where a window ends with a block.
        self._border = KEY_BLOCK if admission.memory.layout.recurrent else 1
        self._holding = False  # a row was paused: nobody starts until somebody leaves

    @property
    def any(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def any_suspect(self) -> bool:
        return any(row.suspect for row in self.running.values())

    @property
    def kv_bytes(self) -> int:
        """Of rows; what the prompt cache holds too is not counted."""
        return self.admission.used(self._all) - self.admission.cache.nbytes

    def kv_bytes_after(self, chosen: Plan) -> int:
        """Of rows and prompt cache, when the step is done."""
        return self.admission.used(self._all) + self._growth(chosen)

    def find(self, id: str) -> Row | None:
        return self.running.get(id) or self.waiting.get(id)

    def admit(self, make_state: Callable[[int], RowState]) -> Iterator[tuple[Row, Exception | None]]:
        """Start waiting rows in their turn, while rows and memory last. Yields each, and why if it failed."""
        if not self.running:
            self._holding = False
        while self.waiting and not self._holding and len(self.running) < self._max_rows:
            row = min(self.waiting.values(), key=_turn)
            try:
                if not self.admission.start(row, self._all, make_state):
                    return  # those behind it wait too, so that it is not starved
            except Exception as error:
                _log.exception("request %s could not start", row.id)
                yield row, error
                continue
            del self.waiting[row.id]
            self.running[row.id] = row
            yield row, None

    def plan(self, drafts: Mapping[str, tuple[int, ...]] | None = None) -> Plan:
        """The next step, with `drafts` for rows of the batch if their KV fits too; rows are paused until the
        rest does."""
        while True:
            members = set(self.batch.rows)
            views = [
                RowView(
                    id=row.id,
                    pending=row.pending,
                    in_batch=row in members,
                    computed=row.computed,
                    suspect=row.suspect,
                    priority=row.request.priority,
                    skipped=row.skipped,
                    blocks=row.blocks,
                )
                for row in sorted(self.running.values(), key=lambda row: row.arrival)
            ]
            chosen = plan(views, self.pace.window(streams=bool(members)), self._border)
            if drafts and chosen.decode:
                chosen = replace(chosen, drafts=drafts)
                if not self.admission.fits(self._growth(chosen), self._all):
                    chosen, drafts = replace(chosen, drafts={}), None
            if len(self.running) <= 1 or self.admission.fits(self._growth(chosen), self._all):
                moving = chosen.lengths
                for view in views:
                    self.running[view.id].skipped = 0 if view.id in moving else view.skipped + 1
                return chosen
            self._pause(max(self.running.values(), key=_turn))

    def publish(self, row: Row) -> None:
        """What the row has computed may serve others, and itself when it comes back."""
        try:
            if row.state is not None:
                self.admission.publish(row, row.state, 0)
            elif self.batch.state is not None and row in self.batch.rows:
                self.admission.publish(row, self.batch.state, self.batch.rows.index(row))
        except Exception as error:  # nothing is lost but the next request's time
            _log.warning("what request %s computed is not kept: %s", row.id, error, exc_info=error)
            error.with_traceback(None)

    def settle(self, joining: Sequence[Row] = ()) -> None:
        """Bring the batch in line with the running rows; `joining` rows enter it.

        Where the new batch cannot be built, its rows compute their state again: nothing is lost but time.
        """
        keep = [row for row in self.batch.rows if row.id in self.running]
        if not joining and len(keep) == len(self.batch.rows):
            return
        try:
            with Transaction() as tx:
                tx.stage(self.batch.stage(keep, joining))
                for source in self._sources:
                    tx.stage(source.stage(keep, joining))
                tx.commit()
        except Exception as error:
            _log.warning("the batch could not change: %s", error, exc_info=error)
            error.with_traceback(None)
            for row in (*keep, *joining):
                self._forget(row)
            self._drop()

    def start_over(self, ids: Sequence[str]) -> list[Row]:
        """After a failed step: these rows compute everything again, one at a time; the batch too."""
        for row in self.batch.rows:  # its state is one
            self._forget(row)
        self._drop()
        rows = [row for id in ids if (row := self.running.get(id)) is not None]
        for row in rows:
            self._forget(row)
            row.suspect = True
        return rows

    def leave(self, row: Row, *, keep: bool) -> None:
        """The row is done. With `keep` what it computed may serve others. `settle` follows."""
        if self.running.pop(row.id, None) is not None:
            self._holding = False
            if keep:
                self.publish(row)
        self.waiting.pop(row.id, None)
        self.admission.leave(row)
        row.state = None

    def _drop(self) -> None:
        self.batch.drop()
        for source in self._sources:
            source.drop()

    @property
    def _all(self) -> list[Row]:
        return list(self.running.values())

    def _growth(self, chosen: Plan) -> int:
        lengths = chosen.lengths
        if chosen.drafts:  # room is reserved for the longest row of the batch
            lengths |= dict.fromkeys(chosen.decode, max(lengths[id] for id in chosen.decode))
        return sum(self.admission.growth(self.running[id], n) for id, n in lengths.items())

    def _pause(self, row: Row) -> None:
        """Memory is short: the row waits again, and computes later what the prompt cache does not keep."""
        _log.info("request %s is paused: memory for KV is short", row.id)
        self.publish(row)
        self._forget(row)
        del self.running[row.id]
        self.waiting[row.id] = row
        self._holding = True
        self.paused += 1
        self.settle()

    def _forget(self, row: Row) -> None:
        self.admission.leave(row)
        row.forget()
