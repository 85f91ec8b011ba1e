"""Which keys a query sees."""

import torch
from torch import Tensor

from tle_attn.oracle.batch import SequenceView, longest_query

#: Queries and keys that share one byte of a block mask.
BLOCK_MASK_TILE = 128


def check_tree_mask(tree_mask: Tensor | None, starts: list[int], causal: bool) -> None:
    if tree_mask is None:
        return
    if tree_mask.dtype not in (torch.bool, torch.uint8):
        raise TypeError(f"tree_mask: {tree_mask.dtype}; must be torch.bool or torch.uint8")
    if not causal:
        raise ValueError("tree_mask: given with causal=False; it replaces the causal rule among this step's tokens and needs causal=True")
    batch, longest = len(starts) - 1, longest_query(starts)
    if tuple(tree_mask.shape) != (batch, longest, longest):
        raise ValueError(f"tree_mask: shape {list(tree_mask.shape)}; must be [batch, queries, queries] = {[batch, longest, longest]}")


def check_block_mask(block_mask: Tensor | None, starts: list[int], num_heads: int, kv_lens: list[int], strict: bool) -> None:
    if block_mask is None:
        return
    if block_mask.dtype != torch.uint8:
        raise TypeError(f"block_mask: {block_mask.dtype}; must be torch.uint8")
    batch, longest = len(starts) - 1, longest_query(starts)
    q_tiles = -(-longest // BLOCK_MASK_TILE)
    shape = tuple(block_mask.shape)
    if len(shape) != 4 or shape[:2] != (batch, num_heads) or shape[2] < q_tiles or shape[3] < 1:
        allowed = f"[{batch}, {num_heads}, >= {q_tiles}, >= 1]"
        raise ValueError(f"block_mask: shape {list(shape)}; must be {allowed}, a byte for each {BLOCK_MASK_TILE} x {BLOCK_MASK_TILE} tile")
    if strict:
        for b, kv_len in enumerate(kv_lens):
            needed = -(-kv_len // BLOCK_MASK_TILE)
            if starts[b] < starts[b + 1] and needed > shape[3]:
                raise ValueError(f"block_mask: {shape[3]} kv tiles; sequence {b} with kv_len {kv_len} needs {needed} (strict_block_mask)")


def visible_keys(
    sequence: SequenceView,
    queries: Tensor,
    heads: slice,
    *,
    causal: bool,
    window: int | None,
    block_mask: Tensor | None,
    tree_mask: Tensor | None,
) -> Tensor:
    """bool [heads or 1, queries, keys] for query numbers `queries` (int64) of a sequence; keys from its first_key on."""
    first_new = sequence.kv_len - sequence.num_queries
    position = sequence.positions(queries)[:, None]
    key = sequence.keys()[None, :]
    seen = torch.ones(len(queries), sequence.num_keys, dtype=torch.bool, device=queries.device)
    if tree_mask is not None:
        tree = tree_mask[sequence.index].to(queries.device).bool()
        among_new = tree[queries[:, None], (key - first_new).clamp(min=0)]
        seen &= (position >= 0) & ((key < first_new) | among_new)
    elif causal:
        seen &= key <= position
    if window is not None:
        seen &= position - key < window
    seen = seen[None]
    if block_mask is not None:
        tiles = block_mask[sequence.index, heads].to(queries.device).bool()
        num_tiles = tiles.shape[2]
        # The tail rule of the CUDA kernels: a mask that is too short says "keep" for exactly one more tile.
        tiles = torch.nn.functional.pad(tiles, (0, 1), value=True)
        key_tile = key[0] // BLOCK_MASK_TILE
        kept = tiles[:, queries // BLOCK_MASK_TILE][:, :, key_tile.clamp(max=num_tiles)]
        seen = seen & kept & (key_tile <= num_tiles)
    return seen
