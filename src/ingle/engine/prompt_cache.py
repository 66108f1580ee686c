"""Blocks of KV that later requests may begin with: a trie over blocks of tokens and media.

An edge is what 64 positions hold: their token ids, and the full digests of media whose soft tokens lie
there. So two prompts share a node only where they are equal, hash collisions included, and pictures of
equal size never meet. Everything below a root belongs to one namespace (`Request.cache_key`).

Pieces of a node, one for each kind of layer, age on their own: inner nodes of a sliding layer are needed
only by prompts that part there, and go first. A hit ends at the deepest node whose pieces, and those
before it as far as each layer's window reaches, are all there.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import mlx.core as mx

from ingle.cache.persistence import (
    BlockFiles,
    chain_digest,
    pack_block,
    unpack_block,
    unpack_carried,
)
from ingle.contracts.cache import KEY_BLOCK, KVBlock, RowState, StateLayout
from ingle.contracts.request import ContentSpan

_log = logging.getLogger(__name__)

BlockKey: TypeAlias = tuple[tuple[int, ...], tuple[tuple[bytes, int, int], ...]]


def block_key(tokens: tuple[int, ...], number: int, content: Sequence[ContentSpan]) -> BlockKey:
    """The edge for block `number`, which holds `tokens`. Spans count from the block's first position."""
    first = number * KEY_BLOCK
    inside = [span for span in content if span.start < first + KEY_BLOCK and span.end > first]
    return tokens, tuple((span.digest, span.start - first, span.end - first) for span in inside)


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    key: BlockKey | None
    depth: int  # blocks from the root, this one included
    blocks: list[KVBlock | None]  # of each kind
    carried: tuple[mx.array, ...] | None = None  # what recurrent layers carry behind this block
    digest: bytes = b""  # names the block's file
    children: dict[BlockKey, _Node] = field(default_factory=dict["BlockKey", "_Node"])
    leases: int = 0  # that end here


@dataclass(slots=True, eq=False)
class Lease:
    """A row's place in the trie. What lies before it stays as long as the row holds it."""

    node: _Node

    @property
    def blocks(self) -> int:
        """Blocks of the row that the trie holds too."""
        return self.node.depth


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """The longest usable beginning: `RowState.adopt`'s arguments."""

    length: int
    blocks: list[list[KVBlock]]
    carried: tuple[mx.array, ...]


class PromptCache:
    """Used by the engine thread alone. Holds at most `max_bytes`, the oldest go first."""

    def __init__(self, layout: StateLayout, max_bytes: int, files: BlockFiles | None = None) -> None:
        self._layout, self.max_bytes, self._files = layout, max_bytes, files
        self._block_bytes = sum(map(layout.block_bytes, range(len(layout.kinds))))
        self._roots: dict[bytes, _Node] = {}
        self._ages: OrderedDict[tuple[_Node, int], int] = OrderedDict()  # piece -> bytes, oldest first
        self.nbytes = 0

    def match(
        self, namespace: bytes, keys: Sequence[BlockKey], content: Sequence[ContentSpan]
    ) -> tuple[Lease, Hit | None]:
        """A lease on what `keys` and the trie have in common, and the part of it that can be used.

        A hit never ends inside a span of `content`: its tokens attend both ways and are computed together.
        """
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._node(None, None, (namespace,))
        lease = self._lease(root)
        path: list[_Node] = []
        for key in keys:
            last = path[-1] if path else root
            found = last.children.get(key) or self._restore(last, key)
            if found is None:
                break
            path.append(found)
        for depth in range(len(path), 0, -1):
            end = depth * KEY_BLOCK
            if any(span.start < end < span.end for span in content):
                continue
            hit = self._usable(path[:depth])
            if hit is not None:
                self._move(lease, path[depth - 1])
                return lease, hit
        return lease, None

    def _usable(self, path: Sequence[_Node]) -> Hit | None:
        """The hit that ends with `path`, if every piece of it is there. Makes its pieces young."""
        length = len(path) * KEY_BLOCK
        last = path[-1]
        if self._layout.recurrent and last.carried is None:
            return None
        blocks: list[list[KVBlock]] = []
        used: list[tuple[_Node, int]] = []
        for number, kind in enumerate(self._layout.kinds):
            first = kind.retention.first_kept(length) // KEY_BLOCK
            pieces = [node.blocks[number] for node in path[first:]]
            present = [piece for piece in pieces if piece is not None]
            if len(present) < len(pieces):
                return None
            blocks.append(present)
            used += [(node, number) for node in path[first:]]
        if last.carried is not None:
            used.append((last, len(self._layout.kinds)))
        for piece in used:
            self._ages.move_to_end(piece)
        return Hit(length, blocks, last.carried or ())

    def publish(
        self, lease: Lease, keys: Sequence[BlockKey], state: RowState, row: int, *, known: int
    ) -> None:
        """Keep the row's blocks behind its lease, for `keys` (those of all whole blocks it has computed).

        The row has `known` tokens, or will have. Where the trie has an equal block the row takes that
        one. A row too large for the whole cache, or for what is not in use, keeps its blocks to itself.
        """
        if known // KEY_BLOCK * self._block_bytes > self.max_bytes:
            return
        for number in range(lease.blocks, len(keys)):
            parent, key = lease.node, keys[number]
            node = parent.children.get(key) or self._node(parent, key, key)
            self._move(lease, node)  # so that it stays while room is made
            if not self._fill(node, number, state, row):
                self._move(lease, parent)
                self._prune(node)
                return

    def _fill(self, node: _Node, number: int, state: RowState, row: int) -> bool:
        """Give a node the pieces that it lacks and the row has. False: there is no room for one."""
        for kind in range(len(self._layout.kinds)):
            if number not in state.held(row, kind):
                continue
            known = node.blocks[kind]
            if known is not None:
                state.replace(row, kind, number, known)
                self._ages.move_to_end((node, kind))
                continue
            if not self._keep(node, kind, state.share(row, kind, number)):
                return False
        if self._layout.recurrent and node.carried is None and state.lengths[row] == node.depth * KEY_BLOCK:
            self._keep_carried(node, state.share_carried(row))
        assert node.parent is not None and node.key is not None
        node.parent.children[node.key] = node
        if self._files is not None and self._files.wants(node.digest.hex()):
            self._files.save(node.digest.hex(), _pieces(node))
        return True

    def _restore(self, parent: _Node, key: BlockKey) -> _Node | None:
        """The node behind `parent`, from its file."""
        if self._files is None:
            return None
        node = self._node(parent, key, key)
        name = node.digest.hex()
        pieces = self._files.load(name) if name in self._files else None
        if pieces is None:
            return None
        parent.leases += 1  # both stay while room is made
        node.leases += 1
        try:
            for kind in range(len(self._layout.kinds)):
                block = unpack_block(self._layout, kind, pieces)
                if block is not None and not self._keep(node, kind, block):
                    return None
            carried = unpack_carried(self._layout, pieces)
            if carried is not None:
                self._keep_carried(node, carried)
            parent.children[key] = node
            return node
        except ValueError as error:
            _log.warning("block %s is not used: %s", name, error)
            return None
        finally:
            parent.leases -= 1
            node.leases -= 1
            if parent.children.get(key) is not node:
                self._remove(node)

    def _node(self, parent: _Node | None, key: BlockKey | None, named: tuple[object, ...]) -> _Node:
        nothing: list[KVBlock | None] = [None] * len(self._layout.kinds)
        before = b"" if parent is None else parent.digest
        digest = b"" if self._files is None else chain_digest(before, named)
        return _Node(parent, key, 0 if parent is None else parent.depth + 1, nothing, digest=digest)

    def release(self, lease: Lease) -> None:
        """The row has gone; what it held may age."""
        lease.node.leases -= 1
        self._prune(lease.node)

    def shrink(self, nbytes: int) -> int:
        """Let go of at least `nbytes`, the oldest first, as far as nobody holds them. Returns what went."""
        before = self.nbytes
        while before - self.nbytes < nbytes and self._evict_one():
            pass
        return before - self.nbytes

    def _lease(self, node: _Node) -> Lease:
        node.leases += 1
        return Lease(node)

    def _move(self, lease: Lease, node: _Node) -> None:
        node.leases += 1
        lease.node.leases -= 1
        lease.node = node

    def _keep(self, node: _Node, kind: int, block: KVBlock) -> bool:
        """Give a node its block of a kind. False: there is no room."""
        if not self._room(block.nbytes):
            return False
        node.blocks[kind] = block
        self._add(node, kind, block.nbytes)
        return True

    def _keep_carried(self, node: _Node, carried: tuple[mx.array, ...]) -> None:
        """Give a node what recurrent layers carry behind it, where there is room."""
        nbytes = sum(value.nbytes for value in carried)
        if self._room(nbytes):
            mx.eval(carried)
            node.carried = carried
            self._add(node, len(self._layout.kinds), nbytes)

    def _add(self, node: _Node, piece: int, nbytes: int) -> None:
        self._ages[node, piece] = nbytes
        self.nbytes += nbytes

    def _room(self, nbytes: int) -> bool:
        while self.nbytes + nbytes > self.max_bytes:
            if not self._evict_one():
                return False
        return True

    def _evict_one(self) -> bool:
        """Let the oldest piece go that nobody needs.

        A node with children or leases keeps the pieces of layers that keep everything; those of windows
        may go, since rows hold what they still look at.
        """
        for node, piece in self._ages:
            needed = bool(node.children or node.leases)
            if needed and not self._windowed(piece):
                continue
            if needed:
                self._drop(node, piece)
            else:
                self._remove(node)
            return True
        return False

    def _windowed(self, piece: int) -> bool:
        kinds = self._layout.kinds
        return piece == len(kinds) or kinds[piece].retention.window is not None

    def _remove(self, node: _Node) -> None:
        for piece in range(len(self._layout.kinds) + 1):
            self._drop(node, piece)
        self._prune(node)

    def _prune(self, node: _Node) -> None:
        """Forget nodes from here upwards that hold nothing and lead nowhere."""
        while not (node.children or node.leases or node.carried or any(node.blocks)):
            if node.parent is None:
                self._roots = {name: root for name, root in self._roots.items() if root is not node}
                return
            if node.key is not None and node.parent.children.get(node.key) is node:
                del node.parent.children[node.key]
            node = node.parent

    def _drop(self, node: _Node, piece: int) -> None:
        nbytes = self._ages.pop((node, piece), None)
        if nbytes is None:
            return
        self.nbytes -= nbytes
        if piece < len(node.blocks):
            node.blocks[piece] = None
        else:
            node.carried = None


def _pieces(node: _Node) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    for kind, block in enumerate(node.blocks):
        if block is not None:
            out |= pack_block(kind, block)
    out |= {f"carried.{i}": value for i, value in enumerate(node.carried or ())}
    return out
