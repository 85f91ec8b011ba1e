"""Mbarrier ring: any number of tiles through any number of slots in every schedule, and a report for each side that does not keep its part."""

import pytest
import torch

from tests.components.paged_ring import Cache, run
from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.emu import BarrierMisuse, Deadlock
from tle_attn.spec import DType, Function, Port, Problem
from tle_attn.testing.blocks import check_block


@pytest.mark.parametrize("page", [32, 64])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_any_number_of_tiles(target, device, seed, stages, page):
    """None, one, one fewer than the slots, as many, one more, and three rounds and one."""
    problem = Problem(page=page)
    for count in sorted({0, 1, stages - 1, stages, stages + 1, 3 * stages + 1}):
        cache = Cache(problem, kv_len=max(count, 1) * 64)
        got = run(problem, cache, 0, count, 0, target, device, seed=seed, ring=MbarrierRing(stages=stages))
        assert torch.equal(got, cache.tokens(0, count, 0)), f"{count} tiles through {stages} slots"


def test_every_schedule_gives_the_same():
    problem = Problem(page=32, head_dim=64)
    cache = Cache(problem, kv_len=10 * 64)
    assert len({run(problem, cache, 0, 10, 1, "cpu", "cpu", seed=seed).view(torch.int16).numpy().tobytes() for seed in range(20)}) == 1


def test_slot_and_use_of_a_tile(target):
    """Tile i is use i // stages of slot i % stages."""
    for function, value in (("slot_of", 17 % 3), ("use_of", 17 // 3)):
        scalar = Port("value", DType.I32, (), ())
        check_block(
            MbarrierRing(stages=3), function, inputs={"i": 17}, ports=Function(function, (), (scalar,)), reference=lambda: torch.tensor(value), target=target
        )


@pytest.mark.parametrize("target", ["cpu", "tle-emulated"])
class TestBrokenParts:
    """Fields that only tests set break one promise each; the emulation says which."""

    def run(self, target: str, **blocks) -> None:
        problem = Problem(head_dim=64)
        for seed in range(5):
            run(problem, Cache(problem, kv_len=7 * 64), 0, 7, 0, target, "cpu", seed=seed, **blocks)

    def test_more_readers_than_there_are(self, target):
        with pytest.raises(Deadlock, match=r"(?s)produce waits for use 1 of empty\[0\].*lacks 1 of 2 arrival"):
            self.run(target, ring=MbarrierRing(stages=3, readers=2))

    def test_too_few_bytes_expected(self, target):
        with pytest.raises(BarrierMisuse, match="still in flight|bytes"):
            self.run(target, loader=PagedTma(expect_scale=0.5))

    def test_too_many_bytes_expected(self, target):
        with pytest.raises(Deadlock, match=r"(?s)consume waits for use 0 of full\[0\].*byte"):
            self.run(target, loader=PagedTma(expect_scale=2.0))
