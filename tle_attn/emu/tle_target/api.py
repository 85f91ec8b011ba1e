"""The documented interface that a generated TLE module may use, as data: names, parameters, since when.

Sources: FlagTree's user guide and release notes for 0.7.0 for ``tle``, ``tle_raw`` and ``dialect``; Triton 3.6.0 for the
rest (the tests compare those rows with an installed Triton 3.6).  Parameters after ``*`` must be named, either because the
API says so or because FlagTree's documents disagree on their order.
"""

from __future__ import annotations

import ast
import functools

from attrs import frozen

NEWEST = "newest"  #: on FlagTree's development branch only: known, and refused

_ROWS: tuple[tuple[str, str, str], ...] = (
    (
        "triton",
        "triton 3.6",
        """
        jit(fn=None, *, version=None, repr=None, launch_metadata=None, do_not_specialize=None, do_not_specialize_on_alignment=None, debug=None, noinline=None)
        constexpr_function(fn)
        language
        """,
    ),
    (
        "triton.language",
        "triton 3.6",
        """
        constexpr(value)
        tensor
        tuple
        dtype
        pointer_type(element_ty, address_space=1, const=False)
        float32
        float16
        bfloat16
        float8e4nv
        float8e5
        int1
        int8
        int16
        int32
        int64
        uint8
        uint16
        uint32
        uint64
        program_id(axis)
        num_programs(axis)
        range(arg1, arg2=None, step=None, num_stages=None, loop_unroll_factor=None, disallow_acc_multi_buffer=False, flatten=False, warp_specialize=False)
        static_range(arg1, arg2=None, step=None)
        static_assert(cond, msg='')
        load(pointer, mask=None, other=None, boundary_check=(), padding_option='', cache_modifier='', eviction_policy='', volatile=False)
        store(pointer, value, mask=None, boundary_check=(), cache_modifier='', eviction_policy='')
        atomic_add(pointer, val, mask=None, sem=None, scope=None)
        atomic_and(pointer, val, mask=None, sem=None, scope=None)
        atomic_cas(pointer, cmp, val, sem=None, scope=None)
        atomic_max(pointer, val, mask=None, sem=None, scope=None)
        atomic_min(pointer, val, mask=None, sem=None, scope=None)
        atomic_or(pointer, val, mask=None, sem=None, scope=None)
        atomic_xchg(pointer, val, mask=None, sem=None, scope=None)
        atomic_xor(pointer, val, mask=None, sem=None, scope=None)
        arange(start, end)
        full(shape, value, dtype)
        zeros(shape, dtype)
        cast(input, dtype, fp_downcast_rounding=None, bitcast=False)
        broadcast_to(input, *shape)
        expand_dims(input, axis)
        reshape(input, *shape, can_reorder=False)
        permute(input, *dims)
        trans(input, *dims)
        join(a, b)
        split(a)
        where(condition, x, y)
        maximum(x, y, propagate_nan=None)
        minimum(x, y, propagate_nan=None)
        abs(x)
        ceil(x)
        floor(x)
        exp(x)
        exp2(x)
        log(x)
        log2(x)
        rsqrt(x)
        sqrt(x)
        fma(x, y, z)
        fdiv(x, y, ieee_rounding=False)
        div_rn(x, y)
        cdiv(x, div)
        max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False)
        min(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False)
        sum(input, axis=None, keep_dims=False, dtype=None)
        cumsum(input, axis=0, reverse=False, dtype=None)
        associative_scan(input, axis, combine_fn, reverse=False)
        reduce(input, axis, combine_fn, keep_dims=False)
        multiple_of(input, values)
        max_contiguous(input, values)
        assume(cond)
        debug_barrier()
        inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack)
        """,
    ),
    ("triton.language.extra.cuda", "triton 3.6", "gdc_wait()\ngdc_launch_dependents()"),
    (
        "triton.experimental.tle.language",
        "before flagtree 0.7.0",
        """
        load(pointer, mask=None, other=None, boundary_check=(), padding_option='', cache_modifier='', eviction_policy='', volatile=False, is_async=False)
        cumsum(input, axis=0, reverse=False, dtype=None)
        exclusive_cumsum(input, axis=0, reverse=False, dtype=None)
        extract_tile(x, index, tile_shape)
        insert_tile(x, tile, index)
        device_mesh(topology=None)
        sharding(mesh, split=None, partial=None)
        distributed_barrier(mesh=None)
        gpu
        raw
        """,
    ),
    (
        "triton.experimental.tle.language",
        "flagtree 0.7.0",
        """
        pipe(*, capacity, scope='cta', name=None, readers=None, one_shot=False, **fields)
        shard_id(mesh, axis)
        remote(tensor, shard_id, scope=None, space='cluster')
        """,
    ),
    ("triton.experimental.tle.language", NEWEST, "concat_dot_fragments(tiles, dim)"),
    (
        "triton.experimental.tle.language.gpu",
        "before flagtree 0.7.0",
        """
        alloc(shape, dtype, layout=None, scope=None, *, init_value=None, alias=None, alias_offset_bytes=0, nv_mma_shared_layout=True)
        copy(src, dst, shape, offsets=None, barrier=None, mask=None)
        local_ptr(buffer, indices=None)
        memory_space(input, space)
        warp_specialize(functions_and_args, worker_num_warps, worker_num_regs)
        buffered_tensor
        buffered_tensor_type
        shared_layout
        swizzled_shared_layout(vectorSize, perPhase, maxPhase, order, numCTAs, numCTAsPerCGA, numCTASplit, numCTAOrder)
        nv_mma_shared_layout(shape, order, elemType, numCTAsPerCGA, numCTASplit, numCTAOrder, fp4Padded, swizzled)
        smem
        tmem
        """,
    ),
    (
        "triton.experimental.tle.language.gpu",
        "flagtree 0.7.0",
        """
        PENDING
        READY
        alloc_barriers(num_barriers, arrive_count=1, init=None, expect_bytes=None)
        alloc_barrier(arrive_count=1, init=None, expect_bytes=None)
        barrier_wait(bar, phaseIdx=None)
        barrier_arrive(bar, arrive_count=1, phaseIdx=None)
        wgmma(a, b, acc=None, input_precision=None, max_num_imprecise_acc=None, out_dtype=None, trans_a=False, trans_b=False)
        wgmma_wait(pendings, acc=None)
        set_layout(value, layout)
        BlockEncoding(size_per_thread, threads_per_warp, warps_per_cta, order)
        MmaEncoding(version, warps_per_cta, instr_shape)
        DotOperandEncoding(operand_index, parent, k_width)
        SlicedEncoding(dim, parent)
        """,
    ),
    (
        "triton.experimental.tle.raw",
        "flagtree 0.7.0",
        "dialect(*, name, file=None, extern_func_name=None, deferred=False, library=None, compiler=None)",
    ),
    (
        "triton.experimental.tle.language.raw",
        "before flagtree 0.7.0",
        """
        call(func, args, output_indices=None, hint='')
        call_smem(func, args, output_indices=None, hint='')
        """,
    ),
)

#: packages on the way to the modules of the table
PACKAGES = frozenset({"triton", "triton.experimental", "triton.experimental.tle", "triton.language.extra"})


@frozen
class Name:
    """One documented name: a function with its parameters, or a value."""

    path: str  #: dotted, from ``triton`` on
    since: str
    callable: bool
    parameters: ast.arguments  #: none for a value

    @property
    def positional(self) -> tuple[str, ...]:
        """Names of the parameters that may be given by position."""
        return tuple(a.arg for a in self.parameters.args)

    @property
    def keyword_only(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.parameters.kwonlyargs)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the parameters without default."""
        p = self.parameters
        plain = self.positional[: len(p.args) - len(p.defaults)]
        return plain + tuple(a.arg for a, d in zip(p.kwonlyargs, p.kw_defaults, strict=True) if d is None)

    def complaint(self, n_positional: int, keywords: tuple[str, ...]) -> str | None:
        """What is wrong with a call of ``n_positional`` arguments by position and ``keywords`` by name, or None."""
        p = self.parameters
        if n_positional > len(p.args) and p.vararg is None:
            named = f" ({', '.join(self.keyword_only)} must be named)" if self.keyword_only else ""
            return f"takes {len(p.args)} positional argument(s), got {n_positional}{named}"
        given = set(self.positional[:n_positional])
        for k in keywords:
            if k in given:
                return f"got two values for {k!r}"
            if k not in self.positional and k not in self.keyword_only and p.kwarg is None:
                return f"has no parameter {k!r}; it has {', '.join(self.positional + self.keyword_only) or 'none'}"
            given.add(k)
        missing = [r for r in self.required if r not in given]
        return f"lacks {', '.join(missing)}" if missing else None


def _parse(module: str, since: str, line: str) -> Name:
    name, paren, rest = line.partition("(")
    function = ast.parse(f"def {name}({rest or ')'}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    return Name(f"{module}.{name}", since, bool(paren), function.args)


@functools.cache
def names() -> dict[str, Name]:
    """The table: dotted path to documented name."""
    rows = [_parse(module, since, line.strip()) for module, since, text in _ROWS for line in text.strip().splitlines()]
    return {row.path: row for row in rows}


@functools.cache
def modules() -> frozenset[str]:
    """The modules of the table."""
    return frozenset(module for module, _, _ in _ROWS) | PACKAGES


def lookup(path: str) -> Name:
    """The documented name at ``path``; KeyError with a sentence if there is none that a module may use."""
    row = names().get(path)
    if row is None:
        raise KeyError(f"{path} is not documented")
    if row.since == NEWEST:
        raise KeyError(f"{path} exists only on FlagTree's development branch, not in 0.7.0")
    return row
