"""What a kernel takes against what an sm_90a multiprocessor has; the numbers are worked out by hand from the CUDA programming guide's limits."""

import pytest

from tle_attn.checks.resources import register_cap, register_table, shared_limit, shared_table
from tle_attn.errors import ResourceError
from tle_attn.spec import DType, MBarriers, NamedBarriers, Resources, Role, SharedBuffer

CONSUMER, PRODUCER = Role("attend", "attend", 4, 0), Role("load", "load", 1, 24)


def fails(make, *parts: str) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return caught.value


@pytest.mark.parametrize("ctas,limit", [(1, 227 * 1024), (2, 113 * 1024), (3, 228 * 1024 // 3 - 1024), (4, 56 * 1024)])
def test_shared_limit(ctas, limit):
    assert shared_limit(ctas) == limit


@pytest.mark.parametrize("roles,ctas,threads,cap", [
    ((CONSUMER,), 1, 128, 255),
    ((CONSUMER, PRODUCER), 1, 256, 255),  # the producer's warp is padded to a warpgroup: 65536 / 256 = 256, and a thread has at most 255
    ((CONSUMER, PRODUCER), 2, 256, 128),
    ((CONSUMER, PRODUCER), 3, 256, 80),  # 85 rounded down to a multiple of 8
    ((CONSUMER, CONSUMER, CONSUMER, PRODUCER), 1, 512, 128),  # 4 + 9 warps are 4 + 12
])  # fmt: skip
def test_register_cap(roles, ctas, threads, cap):
    resources = Resources(roles=roles, ctas_per_sm=ctas)
    assert (resources.threads, register_cap(resources)) == (threads, cap)


def test_register_table():
    assert register_table(Resources(roles=(CONSUMER,))) == [("attend", 4, 255)]
    # 8 warps x 128 = 1024 warp-registers; the producer's warp and the 3 that pad it hold 24 each; (1024 - 96) / 4 = 232
    assert register_table(Resources(roles=(CONSUMER, PRODUCER), ctas_per_sm=2)) == [("attend", 4, 232), ("load", 1, 24)]
    # 2040 - 96 over 4 warps are more than setmaxnreg gives
    assert register_table(Resources(roles=(CONSUMER, PRODUCER)))[0] == ("attend", 4, 240)


def test_shared_table_adds_up():
    resources = Resources(
        buffers=(SharedBuffer("ring", (3, 64, 128), DType.BF16), SharedBuffer("list", (100,), DType.I32)),
        barriers=(MBarriers("full", 3), MBarriers("empty", 3)), roles=(CONSUMER,), scratch_bytes=512,
    )  # fmt: skip
    rows = shared_table(resources)
    assert rows[0] == ("ring", "bf16[3, 64, 128]", 49152) and rows[1] == ("list", "i32[100]", 400)
    assert [name for name, *_ in rows] == ["ring", "list", "mbarriers", "scratch", "sum"]
    assert rows[-1][2] == sum(n for _, _, n in rows[:-1]) == resources.shared_bytes
    assert rows[2][2] == sum(b.nbytes for b in resources.barriers) >= 6 * 8


def test_too_much_shared_memory(make_kernel):
    def with_stages(n: int) -> Resources:
        return Resources(buffers=(SharedBuffer("ring", (n, 64, 128), DType.BF16),), roles=(CONSUMER,), ctas_per_sm=2)

    make_kernel(takes=with_stages(7))  # 7 x 16 KiB = 112 KiB of 113
    error = fails(
        lambda: make_kernel(takes=with_stages(8)), "131,072 bytes of shared memory, 15,360 too many", "allowed  115,712 B for each of 2 CTAs",
        "ring bf16[8, 64, 128] 131,072 B; mbarriers 0 x", "sum 131,072 B",
    )  # fmt: skip
    assert error.key == "mainloop"


def test_too_many_warps(make_kernel):
    fails(lambda: make_kernel(takes=Resources(roles=(CONSUMER, *[CONSUMER] * 4), ctas_per_sm=4)), "80 warps on a multiprocessor", "64 warps")


@pytest.mark.parametrize("registers", [0, 16, 30, 248])
def test_registers_that_setmaxnreg_does_not_take(make_kernel, registers):
    roles = (CONSUMER, Role("load", "load", 1, registers))
    error = fails(lambda: make_kernel(takes=Resources(roles=roles)), f"{registers} registers per thread for role load", "a multiple of 8 from 24 to 240")
    assert error.value == registers


def test_too_few_registers_left(make_kernel):
    # 32 warps x 64 = 2048 warp-registers, of which three consumer warpgroups of 160 take 1920 and the producer's warpgroup 4 x 24: 32 are left for 4 warps
    roles = (CONSUMER, *(Role(f"consumer_{i}", "attend", 4, 160) for i in range(3)), Role("load", "load", 4, 24))
    fails(
        lambda: make_kernel(takes=Resources(roles=roles, ctas_per_sm=2)),
        "registers per thread are left for role attend",
        "consumer_0 4 warps x 160",
        "65,536 registers",
    )


def test_arrive_counts(make_kernel):
    fails(
        lambda: make_kernel(takes=Resources(barriers=(MBarriers("empty", 3, arrive_count=0),), roles=(CONSUMER,))),
        "barrier empty needs an arrive count of 1 or more",
    )


@pytest.mark.parametrize("named,used", [
    ((NamedBarriers("a", 7, 1, 128),), "[7]"),
    ((NamedBarriers("a", 15, 2, 128),), "[15, 16]"),
    ((NamedBarriers("a", 8, 2, 128), NamedBarriers("b", 9, 1, 128)), "[8, 9, 9]"),
])  # fmt: skip
def test_named_barriers(make_kernel, named, used):
    fails(lambda: make_kernel(takes=Resources(named=named, roles=(CONSUMER,))), f"named barriers {used} collide or are out of range", "distinct ids 8 .. 15")
    make_kernel(takes=Resources(named=(NamedBarriers("a", 8, 4, 128), NamedBarriers("b", 12, 4, 128)), roles=(CONSUMER,)))
