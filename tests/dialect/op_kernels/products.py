"""wgmma."""
# ruff: noqa: F821 (the names are the dialect's; a target's prelude comes first)
# ==== kernel text: the same for every target
@jit
def k_wgmma(a, b, out):
    # all majors: [64, 64] @ [64, 32]
    a_k = alloc([64, 64], BF16)
    a_m = alloc([64, 64], BF16)
    b_k = alloc([32, 64], BF16)
    b_n = alloc([64, 32], BF16)
    ta = load_tile(a, 64, 64)
    tb = load_tile(b, 64, 32)
    smem_store(a_k, ta)
    smem_store(a_m, trans(ta))
    smem_store(b_n, tb)
    smem_store(b_k, trans(tb))
    fence_async()
    o = wgmma_wait(0, wgmma(a_k, b_n))
    store_tile(out, o, 32)
    o = wgmma_wait(0, wgmma(a_m, b_n, trans_a=True))
    store_tile(out + 2048, o, 32)
    o = wgmma_wait(0, wgmma(a_k, b_k, trans_b=True))
    store_tile(out + 4096, o, 32)
    o = wgmma_wait(0, wgmma(a_m, b_k, mma_zeros(64, 32, BF16), trans_a=True, trans_b=True))
    store_tile(out + 6144, o, 32)


@jit
def k_wgmma_pipelined(a, b, out):
    # two groups in flight; the second accumulates onto ones
    a_smem = alloc([2, 64, 64], F16)
    b_smem = alloc([64, 64], F16)
    smem_store(a_smem.slot(0), load_tile(a, 64, 64))
    smem_store(a_smem.slot(1), load_tile(a + 4096, 64, 64))
    smem_store(b_smem, load_tile(b, 64, 64))
    fence_async()
    first = wgmma(a_smem.slot(0), b_smem)
    second = wgmma(a_smem.slot(1), b_smem, mma_zeros(64, 64, F16) + 1.0)
    first = wgmma_wait(1, first)
    store_tile(out, first, 64)
    second = wgmma_wait(0, second)
    store_tile(out + 4096, second, 64)
    third = wgmma(a_smem.slot(0), b_smem, second)
    fourth = wgmma(a_smem.slot(1), b_smem, first)
    third, fourth = wgmma_wait(0, (third, fourth))
    store_tile(out + 8192, third, 64)
    store_tile(out + 12288, fourth, 64)


@jit
def k_operand(q, k, out):
    # an operand that is read into registers, and row sums that are pinned before the wait
    q_smem = alloc([64, 128], BF16)
    k_smem = alloc([64, 128], BF16)
    smem_store(q_smem, load_tile(q, 64, 128))
    smem_store(k_smem, load_tile(k, 64, 128))
    fence_async()
    s = wgmma(smem_operand(q_smem, mma_zeros(64, 64, BF16)), k_smem, trans_b=True)
    l = pin(full_rows(mma_zeros(64, 64, BF16), 3.0))
    s = wgmma_wait(0, s)
    store_tile(out, wide_rows(s * l[:, None]), 64)


@jit
def k_wgmma_register(q, k, v, out):
    # scores as the register operand of the second product
    q_smem = alloc([64, 128], BF16)
    k_smem = alloc([64, 128], BF16)
    v_smem = alloc([64, 128], BF16)
    smem_store(q_smem, load_tile(q, 64, 128))
    smem_store(k_smem, load_tile(k, 64, 128))
    smem_store(v_smem, load_tile(v, 64, 128))
    fence_async()
    o = mma_zeros(64, 128, BF16)
    s = wgmma_wait(0, wgmma(q_smem, k_smem, trans_b=True))
    p = register_operand(s.to(BF16), o)
    o = wgmma_wait(0, wgmma(p, v_smem, o))
    store_tile(out, o, 128)


@jit
def k_wgmma_fp8(a, b, out):
    a_smem = alloc([64, 64], FP8)
    b_smem = alloc([16, 64], FP8)
    smem_store(a_smem, load_tile(a, 64, 64))
    smem_store(b_smem, load_tile(b, 16, 64))
    fence_async()
    o = wgmma_wait(0, wgmma(a_smem, b_smem, trans_b=True))
    store_tile(out, o, 16)
