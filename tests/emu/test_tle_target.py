"""The emulated TLE: legal uses pass and compute what they should, and loading a module changes nothing outside of it."""

import sys

import pytest
import torch
from tle_modules import SNIPPET_HEADER, load_text, run_snippet

from tle_attn import emu
from tle_attn.emu.tle_target import TLEContractError, TLENotEmulated, UnknownTLEName, load_tle_module

LEGAL = {
    "memory": """
        v = tl.load(x + tl.arange(0, 64), mask=tl.arange(0, 64) < n, other=1.0)
        tl.store(x + tl.arange(0, 64), v + 1.0)
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        tl.inline_asm_elementwise("fence.proxy.async.shared::cta; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(counter + 1, tl.program_id(0) + tl.num_programs(0))
    """,
    "tiles": """
        a = tl.full([64, 32], 2.0, tl.float32)
        b = tl.trans(tl.zeros([32, 64], tl.float32)) + tl.exp2(a) / tl.fdiv(a, 3.0)
        c = tl.permute(tl.reshape(b, [64, 2, 16]), [0, 2, 1])
        d = tl.cast(tl.max(b, 1) + tl.log2(tl.sum(b, 1)), tl.bfloat16)
        e = tl.where(tl.arange(32, 96) > n, tl.maximum(d, 0.0), tl.minimum(d, 1.0))
        for i in tl.static_range(2):
            e = e * i
        for i in tl.range(0, n):
            e = e + i
        static_argument(64)
        k = tl.cumsum(tl.arange(0, 32), 0)
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [b], dtype=tl.float32, is_pure=True, pack=1)
    """,
    "shared memory": """
        ring = tle.gpu.alloc([2, 64, 64], tl.bfloat16)
        small = tle.gpu.alloc([4, 64, 32], tl.bfloat16, alias=ring)
        tl.store(tle.gpu.local_ptr(small.slot(n)), tl.full([64, 32], 1.0, tl.bfloat16))
        v = tl.load(tle.gpu.local_ptr(small.slot(3)))
        plain = tle.gpu.alloc([64], tl.float32, nv_mma_shared_layout=False)
        tl.store(tle.gpu.local_ptr(plain), tl.full([64], 5.0, tl.float32))
        tl.store(x + tl.arange(0, 64), tl.load(tle.gpu.local_ptr(plain)))
        tl.debug_barrier()
    """,
    "copy, wgmma and store": """
        ring = tle.gpu.alloc([2, 64, 64], tl.bfloat16)
        full = tle.gpu.alloc_barriers(2, expect_bytes=8192)
        tle.gpu.copy(desc, ring.slot(0), [64, 64], [0, 0], barrier=full[0])
        tle.gpu.copy(desc, ring.slot(n - 2), [64, 64], [n * 20, 0], barrier=full[1])
        tle.gpu.barrier_wait(full[0], phaseIdx=0)
        tle.gpu.barrier_wait(full[1], phaseIdx=0)
        acc = tle.gpu.wgmma(ring.slot(0), ring.slot(1), trans_b=True)
        acc = tle.gpu.wgmma(ring.slot(0), ring.slot(1), acc, trans_a=True)
        acc = tle.gpu.wgmma_wait(1, acc)
        acc = tle.gpu.wgmma_wait(acc)
        acc = tle.gpu.wgmma_wait(0, tle.gpu.wgmma(acc.to(tl.bfloat16), ring.slot(1), trans_a=True))
        tle.gpu.copy(ring.slot(0), desc, [64, 64], [64, 0])
    """,
    "one barrier": """
        one = tle.gpu.alloc_barrier(2, tle.gpu.READY)
        tle.gpu.barrier_wait(one, phaseIdx=0)
        tle.gpu.barrier_arrive(one, 2, phaseIdx=0)
        tle.gpu.barrier_wait(one[0], phaseIdx=n // 3)
        full = tle.gpu.alloc_barrier(expect_bytes=8192)
        tile = tle.gpu.alloc([64, 64], tl.bfloat16)
        tle.gpu.copy(desc, tile, [64, 64], [0, 0], barrier=full)
        tle.gpu.barrier_wait(full, phaseIdx=0)
    """,
    "dependent launch": "gdc_wait()\ngdc_launch_dependents()",
    "device functions": """
        v = tle_raw.call(twice, [tl.zeros([64], tl.float32), tl.full([64], 4.0, tl.float32)], output_indices=[0])
        plain = tle.gpu.alloc([64], tl.float32, nv_mma_shared_layout=False)
        plain = tle_raw.call_smem(fill, [plain], output_indices=[0])
        tl.store(x + tl.arange(0, 64), v + tl.load(tle.gpu.local_ptr(plain)))
    """,
}


@pytest.mark.parametrize("body", LEGAL.values(), ids=LEGAL)
def test_legal_uses_pass(tmp_path, body):
    run_snippet(tmp_path, body)


def test_memory(tmp_path):
    x, _ = run_snippet(tmp_path, LEGAL["memory"])
    assert (x[:3] == 1).all() and (x[3:64] == 2).all() and not x[64:].any()


def test_copy_through_shared_memory(tmp_path):
    _, matrix = run_snippet(tmp_path, LEGAL["copy, wgmma and store"])
    assert torch.equal(matrix[64:], matrix[:64])


def test_wgmma_product(tmp_path):
    body = """
        t = tle.gpu.alloc([64, 64], tl.bfloat16)
        full = tle.gpu.alloc_barrier(expect_bytes=8192)
        tle.gpu.copy(desc, t, [64, 64], [0, 0], barrier=full)
        tle.gpu.barrier_wait(full, phaseIdx=0)
        s = tle.gpu.wgmma_wait(0, tle.gpu.wgmma(t, t, tl.full([64, 64], 1.0, tl.float32), trans_b=True))
        s = tle.gpu.wgmma_wait(0, tle.gpu.wgmma(s.to(tl.bfloat16), t, trans_a=True))
        tl.store(x + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], s)
    """
    x, matrix = run_snippet(tmp_path, body)
    t = matrix[:64].double()
    s = (t @ t.T + 1).bfloat16().double()
    torch.testing.assert_close(x.reshape(64, 64).double(), s.T @ t, rtol=1e-5, atol=1e-3)


def test_device_functions(tmp_path):
    x, _ = run_snippet(tmp_path, LEGAL["device functions"])
    assert (x[:64] == 9).all()


# ---------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ("tl.no_such_name", UnknownTLEName, "triton.language.no_such_name is not documented"),
        ("tle.gpu.buffered_load", UnknownTLEName, "triton.experimental.tle.language.gpu.buffered_load is not documented"),
        ("tle.concat_dot_fragments", UnknownTLEName, "only on FlagTree's development branch"),
        ("import triton.experimental.gluon", UnknownTLEName, "module triton.experimental.gluon is not documented"),
        ("tle.pipe", TLENotEmulated, "is documented, but not emulated"),
    ],
)
def test_names_of_a_module(tmp_path, line, error, text):
    path = tmp_path / "names.py"
    path.write_text(SNIPPET_HEADER + line + "\n")
    with pytest.raises(error, match=text):
        load_tle_module(path)


@pytest.mark.parametrize(
    "body",
    [
        "tl.inline_asm_elementwise('bar.sync 0;', '=r', [], dtype=tl.int32, is_pure=False, pack=1)",
        "tle.gpu.copy(desc, tle.gpu.alloc([64, 64], tl.bfloat16), [64, 64], [0, 0])",
        "tle.gpu.alloc([64, 64], tl.float32, init_value=tl.zeros([64, 64], tl.float32))",
        "tl.load(tle.gpu.local_ptr(tle.gpu.alloc([64], tl.float32), [tl.arange(0, 64)]))",
        "tl.store(tle.gpu.local_ptr(tle.gpu.alloc([64], tl.float32), [tl.arange(0, 64)]), tl.zeros([64], tl.float32))",
        "tle.shard_id(tle.device_mesh({'node': 2}), 'node')",
        "tl.atomic_add(counter, 1, scope='cta')",
    ],
)
def test_documented_calls_that_are_not_emulated_say_so(tmp_path, body):
    with pytest.raises(TLENotEmulated, match="not emulated, at kernel:"):
        run_snippet(tmp_path, body)


def test_loading_leaves_the_process_alone(tmp_path):
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "triton"}
    run_snippet(tmp_path, "tl.load(x)")
    assert before == {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "triton"}
    assert range(3)[1] == 1 and type(range(3)[1]) is int


def test_other_imports_are_the_real_ones(tmp_path):
    path = tmp_path / "imports.py"
    path.write_text("import math\nfrom pathlib import Path\nimport triton\nimport triton.language as tl\n")
    module = load_tle_module(path)
    assert module.math.pi > 3 and module.Path(path).exists()
    assert module.triton.language is module.tl and type(module.tl.bfloat16) is emu.DType


# ---------------------------------------------------------------- roles, named barriers, clusters
NAMED = """
@jit
def first(x, named):
    named_wait(named[0])
    store(x + 1, load(x) + 1.0)
    named_arrive(named[1])


@jit
def second(x, named):
    store(x, 7.0)
    named_arrive(named[0])
    named_wait(named[1])
    store(x + 2, load(x + 1) + 1.0)


@jit
def kernel(x):
    named = alloc_named(4, 2, THREADS)
    warp_specialize([(first, (x, named)), (second, (x, named))], [1], [24])
"""


def test_named_barriers_order_two_roles(tmp_path):
    module = load_text(tmp_path, "THREADS = constexpr(160)\n" + NAMED)
    for seed in range(8):
        x = torch.zeros(4)
        emu.launch(module.kernel, (1,), dict(x=("*f32", x)), seed=seed)
        assert x.tolist() == [7, 8, 9, 0]


def test_named_barrier_counts_arriving_and_waiting_threads(tmp_path):
    module = load_text(tmp_path, "THREADS = constexpr(192)\n" + NAMED)
    with pytest.raises(emu.Deadlock, match=r"named\[0\]"):
        emu.launch(module.kernel, (1,), dict(x=("*f32", torch.zeros(4))))


@pytest.mark.parametrize(("arrays", "fits"), [(12, True), (13, False)])
def test_two_workers_leave_twelve_named_barriers(tmp_path, arrays, fits):
    text = f"""
@jit
def idle(named):
    pass


@jit
def sync(named):
    for i in static_range({arrays}):
        named_wait(named[i])


@jit
def kernel(x):
    named = alloc_named(2, {arrays}, 128)
    warp_specialize([(sync, (named,)), (idle, (named,)), (idle, (named,))], [1, 1], [24, 24])
"""
    launch = dict(fn=load_text(tmp_path, text).kernel, grid=(1,), args=dict(x=("*f32", torch.zeros(1))))
    if fits:
        emu.launch(**launch)
    else:
        with pytest.raises(TLEContractError, match="the compiler keeps 4 of 16"):
            emu.launch(**launch)


EXCHANGE = """
@jit
def kernel(x, out):
    cluster_dims(2)
    rank = cluster_rank()
    inbox = alloc_plain([8, 64], F32)
    landed = alloc_barriers(1)
    cluster_barrier()
    r, c = tile_index(8, 64, 4)
    mine = load(x + (rank * 8 + r[:, None]) * 64 + c[None, :])
    cluster_push(inbox, 1 - rank, mine, landed[0])
    cluster_push_wait(landed[0], 0, 8 * 64 * 4)
    store(out + (rank * 8 + r[:, None]) * 64 + c[None, :], smem_load(inbox) + remote_load(inbox, 1 - rank))
    cluster_barrier()
"""


def test_cluster_exchange(tmp_path):
    module = load_text(tmp_path, EXCHANGE)
    x = torch.randn(2, 8, 64)
    for seed in range(8):
        out = torch.empty_like(x)
        emu.launch(module.kernel, (1,), dict(x=("*f32", x), out=("*f32", out)), cluster=2, seed=seed)
        assert torch.equal(out, (x[0] + x[1]).expand(2, 8, 64))


def test_a_peer_may_not_leave_while_it_is_read(tmp_path):
    module = load_text(tmp_path, EXCHANGE.rstrip().removesuffix("cluster_barrier()"))
    with pytest.raises(emu.Race, match="exit"):
        for seed in range(8):
            emu.launch(module.kernel, (1,), dict(x=("*f32", torch.randn(2, 8, 64)), out=("*f32", torch.empty(2, 8, 64))), cluster=2, seed=seed)


def test_the_mesh_is_the_cluster_of_the_launch(tmp_path):
    module = load_text(tmp_path, EXCHANGE)
    with pytest.raises(emu.EmulationError, match=r"cluster_dims\(2\) in a launch with clusters of 4"):
        emu.launch(module.kernel, (1,), dict(x=("*f32", torch.zeros(1)), out=("*f32", torch.zeros(1))), cluster=4)


# ---------------------------------------------------------------- the emulation's own checks reach through
def test_two_copies_on_one_slot_in_one_use(tmp_path):
    body = """
        ring = tle.gpu.alloc([2, 64, 64], tl.bfloat16)
        full = tle.gpu.alloc_barrier(expect_bytes=8192)
        tle.gpu.copy(desc, ring.slot(0), [64, 64], [0, 0], barrier=full)
        tle.gpu.copy(desc, ring.slot(1), [64, 64], [64, 0], barrier=full)
    """
    with pytest.raises(emu.BarrierMisuse, match="two copies on one slot"):
        run_snippet(tmp_path, body)


@pytest.mark.parametrize(("phases", "fails"), [((0, 0), False), ((0, 1), True), ((1, 0), True)])
def test_phase_is_the_logical_use_of_the_slot(tmp_path, phases, fails):
    body = f"""
        pair = tle.gpu.alloc_barriers(2, 1)
        ready = tle.gpu.alloc_barriers(1, 1, tle.gpu.READY)
        tle.gpu.barrier_arrive(pair[0], phaseIdx=0)
        tle.gpu.barrier_wait(pair[0], phaseIdx={phases[0]})
        tle.gpu.barrier_wait(ready[0], phaseIdx={phases[1]})
    """
    if fails:
        with pytest.raises((emu.BarrierMisuse, emu.Deadlock)):
            run_snippet(tmp_path, body)
    else:
        run_snippet(tmp_path, body)


def test_wgmma_needs_the_proxy_fence(tmp_path):
    store = "t = alloc([64, 64], BF16)\n    smem_store(t, mma_zeros(64, 64, BF16).to(BF16))\n"
    text = f"@jit\ndef kernel(x):\n    {store}    fence_async()\n    s = wgmma_wait(0, wgmma(t, t))\n"
    launch = dict(grid=(1,), args=dict(x=("*f32", torch.zeros(1))))
    emu.launch(load_text(tmp_path, text).kernel, **launch)
    with pytest.raises(emu.MissingProxyFence):
        emu.launch(load_text(tmp_path, text.replace("    fence_async()\n", "")).kernel, **launch)


def test_compact_keeps_the_order(tmp_path):
    text = """
@jit
def idle(kept):
    pass


@jit
def pick(x, out, kept):
    i = vec_index(64)
    v = load(x + i)
    count = compact((v > 0).to(I32), v, kept, 0)
    count = compact((v > 50).to(I32), v, kept, count)
    store(out, count)
    store(out + 1 + i, smem_load_rows(kept, i), mask=i < count)


@jit
def kernel(x, out):
    kept = alloc_plain([64], I32)
    smem_store(kept, vec_index(64) * 0)
    warp_specialize([(idle, (kept,)), (pick, (x, out, kept))], [1], [24])
"""
    module = load_text(tmp_path, text)
    x, out = torch.randint(-100, 100, (64,), dtype=torch.int32), torch.zeros(65, dtype=torch.int32)
    x[::3] = -1
    emu.launch(module.kernel, (1,), dict(x=("*i32", x), out=("*i32", out)))
    expected = x[x > 0].tolist() + x[x > 50].tolist()
    assert out.tolist() == [len(expected), *expected, *[0] * (64 - len(expected))]
