"""A checked batch: which query rows and which cache slots belong to each sequence."""

import itertools
from collections.abc import Iterator

import torch
from attrs import frozen
from torch import Tensor


@frozen
class SequenceView:
    """One sequence of the batch."""

    index: int
    rows: slice  #: its query rows
    kv_len: int  #: keys, this step's tokens included
    first_key: int  #: keys before it lie outside every window, and their pages may be gone
    pages: Tensor  #: int64 page ids of the pages that hold keys first_key .. kv_len - 1
    page_size: int

    @property
    def num_queries(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def num_keys(self) -> int:
        return self.kv_len - self.first_key

    def positions(self, queries: Tensor) -> Tensor:
        """Where the sequence's queries of these numbers stand among its keys: a query is the key of its own position."""
        return self.kv_len - self.num_queries + queries

    def keys(self) -> Tensor:
        """Positions of the keys: first_key .. kv_len - 1."""
        return torch.arange(self.first_key, self.kv_len, device=self.pages.device)

    def live(self, slots: Tensor) -> Tensor:
        """The keys' entries among all slots [len(pages), page, ...] of the sequence's pages: [num_keys, ...]."""
        start = self.first_key % self.page_size
        return slots.flatten(0, 1)[start : start + self.num_keys]


def check_tensors(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Tensor, kv_lens: Tensor) -> None:
    """Raise TypeError or ValueError, naming the tensor and the rule, unless the tensors fit together."""
    if q.dim() != 3:
        raise ValueError(f"q: shape {list(q.shape)}; must be [tokens, q heads, dim]")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 4:
            raise ValueError(f"{name}: shape {list(cache.shape)}; must be [pages, page, kv heads, dim]")
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name}: {tensor.dtype}; must be a floating-point type")
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, but q is on {q.device}; must be on one device")
    for name, tensor in (("block_ids", block_ids), ("kv_lens", kv_lens)):
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name}: {tensor.dtype}; must be torch.int32")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(f"v_cache: [pages, page, kv heads] is {list(v_cache.shape[:3])}; must equal k_cache's {list(k_cache.shape[:3])}")
    if q.shape[2] != k_cache.shape[3]:
        raise ValueError(f"q: dim {q.shape[2]}; must equal k_cache's {k_cache.shape[3]}")
    if k_cache.shape[2] == 0 or q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"q: {q.shape[1]} heads; must be a multiple of the {k_cache.shape[2]} kv heads of k_cache")
    if kv_lens.dim() != 1:
        raise ValueError(f"kv_lens: shape {list(kv_lens.shape)}; must be [batch]")
    if block_ids.dim() != 2 or len(block_ids) != len(kv_lens):
        raise ValueError(f"block_ids: shape {list(block_ids.shape)}; must be [batch, columns] with the batch {len(kv_lens)} of kv_lens")


def query_starts(num_rows: int, batch: int, cu_seqlens_q: Tensor | None, query_tokens: int | None) -> list[int]:
    """Row where each sequence's queries start, and where the last one's end: batch + 1 numbers."""
    if (cu_seqlens_q is None) == (query_tokens is None):
        raise ValueError("cu_seqlens_q, query_tokens: give exactly one of them")
    if query_tokens is not None:
        if query_tokens < 1:
            raise ValueError(f"query_tokens: {query_tokens}; must be at least 1")
        starts = [i * query_tokens for i in range(batch + 1)]
    else:
        if cu_seqlens_q.dtype != torch.int32:
            raise TypeError(f"cu_seqlens_q: {cu_seqlens_q.dtype}; must be torch.int32")
        if cu_seqlens_q.shape != (batch + 1,):
            raise ValueError(f"cu_seqlens_q: shape {list(cu_seqlens_q.shape)}; must be [batch + 1] = [{batch + 1}]")
        starts = cu_seqlens_q.tolist()
        if starts[0] != 0 or any(a > b for a, b in itertools.pairwise(starts)):
            raise ValueError(f"cu_seqlens_q: {starts}; must start at 0 and never decrease")
    if starts[-1] > num_rows:
        raise ValueError(f"q: {num_rows} rows; must be at least the {starts[-1]} that the sequences own")
    return starts


def longest_query(starts: list[int]) -> int:
    """Queries of the sequence that has most."""
    return max((end - start for start, end in itertools.pairwise(starts)), default=0)


def sequences(starts: list[int], kv_lens: list[int], block_ids: Tensor, k_cache: Tensor, window: int | None) -> Iterator[SequenceView]:
    """The sequences that have queries, in order.  Only block ids of live pages are looked at."""
    num_pages, page_size = k_cache.shape[:2]
    block_ids = block_ids.cpu()
    for b, kv_len in enumerate(kv_lens):
        rows = slice(starts[b], starts[b + 1])
        if rows.start == rows.stop:
            continue
        if kv_len < 0:
            raise ValueError(f"kv_lens: {kv_len} for sequence {b}; must not be negative")
        first_position = kv_len - (rows.stop - rows.start)
        first_key = 0 if window is None else max(0, first_position - window + 1)
        first_page, end_page = first_key // page_size, -(-kv_len // page_size)
        if end_page > block_ids.shape[1]:
            raise ValueError(f"block_ids: {block_ids.shape[1]} columns; sequence {b} with kv_len {kv_len} and page {page_size} needs {end_page}")
        pages = block_ids[b, first_page:end_page].long()
        wrong = torch.nonzero((pages < 0) | (pages >= num_pages)).flatten()
        if len(wrong):
            logical = int(wrong[0])
            where = f"sequence {b}, logical page {first_page + logical}"
            raise ValueError(f"block_ids: {int(pages[logical])} for {where}; a page in use must be in 0 .. {num_pages - 1}")
        yield SequenceView(b, rows, kv_len, first_key, pages.to(k_cache.device), page_size)
