"""Steps of a server."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tle_attn.runtime import Plan
from tle_attn.testing import make_decode_problem


def serve(plan_of: Callable[[int], Plan], page: int, device: str = "cpu") -> None:
    """Batch, lengths and width of the page table change from step to step."""
    generator = torch.Generator().manual_seed(1)
    for batch in (1, 8, 3, 64):
        plan = plan_of(batch)
        for longest in (1, 500, 3000):
            lengths = torch.randint(0, longest + 1, (batch,), generator=generator)
            problem = make_decode_problem(lengths.tolist(), heads=(8, 1), page=page, device=device)
            plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
