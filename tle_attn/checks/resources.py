"""Does the kernel fit a multiprocessor? Shared memory, registers of each role, barriers, with the table that adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ResourceError
from ..spec.resources import (
    MAX_REGISTERS_PER_THREAD,
    MAX_WARPS_PER_SM,
    NAMED_BARRIERS,
    REGISTERS_PER_SM,
    SHARED_BYTES_PER_CTA,
    SHARED_BYTES_PER_SM,
    SHARED_BYTES_RESERVED,
    Resources,
)

if TYPE_CHECKING:
    from ..spec import Kernel


def shared_limit(ctas_per_sm: int) -> int:
    """Shared bytes that each of `ctas_per_sm` CTAs may use."""
    return min(SHARED_BYTES_PER_CTA, SHARED_BYTES_PER_SM // ctas_per_sm - SHARED_BYTES_RESERVED)


def shared_table(resources: Resources) -> list[tuple[str, str, int]]:
    """Rows (name, what, bytes) of the shared memory map, and the sum."""
    rows = [(b.name, f"{b.dtype.value}{list(b.shape)}", b.nbytes) for b in resources.buffers]
    rows.append(("mbarriers", f"{sum(b.slots for b in resources.barriers)} x 8 B", sum(b.nbytes for b in resources.barriers)))
    if resources.scratch_bytes:
        rows.append(("scratch", "reductions (estimate)", resources.scratch_bytes))
    rows.append(("sum", "", resources.shared_bytes))
    return rows


def register_cap(resources: Resources) -> int:
    """Registers per thread at launch (`maxnreg`), a multiple of 8."""
    per_thread = REGISTERS_PER_SM // (resources.ctas_per_sm * resources.threads)
    return min(MAX_REGISTERS_PER_THREAD, per_thread // 8 * 8) if per_thread < 256 else MAX_REGISTERS_PER_THREAD


def launch_options(kernel: Kernel, entry: str) -> dict[str, Any]:
    """What a launch of a kernel of the module is told beside its arguments: warps of role 0, the bound on registers of an attention kernel, and whether it may start early."""
    mainloop = kernel.mainloop
    return (
        {"num_warps": 4} | ({"maxnreg": register_cap(kernel.resources)} if entry in mainloop.ENTRIES else {}) | ({"launch_pdl": True} if entry in mainloop.dependents() else {})
    )


def register_table(resources: Resources) -> list[tuple[str, int, int]]:
    """Rows (role, warps, registers per thread); workers get what they ask for, the default role what is left."""
    cap = register_cap(resources)
    workers = resources.roles[1:]
    if not workers:
        return [(resources.roles[0].name, resources.roles[0].warps, cap)]
    padded = resources.threads // 32 - resources.roles[0].warps
    asked = sum(r.warps * r.registers for r in workers) + (padded - sum(r.warps for r in workers)) * min(r.registers for r in workers)
    left = (cap * (resources.threads // 32) - asked) // resources.roles[0].warps // 8 * 8
    return [(resources.roles[0].name, resources.roles[0].warps, min(left, 240))] + [(r.name, r.warps, r.registers) for r in workers]


def _advice(kernel: Kernel) -> str:
    """The options of this kernel that its shared memory grows with, and that can be lower."""
    loop = kernel.mainloop
    options = {"ring.stages": (getattr(loop, "ring", None), "stages"), "mainloop.ctas_per_sm": (loop, "ctas_per_sm"), "mainloop.consumers": (loop, "consumers"), "reduce.size": (getattr(loop, "reduce", None), "size")}
    lower = [key for key, (block, name) in options.items() if (getattr(block, name, None) or 1) > 1]
    return "; lower " + " or ".join(lower) if lower else ""


def check_resources(kernel: Kernel) -> None:
    """Raise ResourceError where the kernel exceeds sm_90a; the message holds the table."""
    resources = kernel.resources
    limit = shared_limit(resources.ctas_per_sm)
    if resources.shared_bytes > limit:
        table = "; ".join(f"{name} {what} {n:,} B" if what else f"{name} {n:,} B" for name, what, n in shared_table(resources))
        raise ResourceError(
            f"{resources.shared_bytes:,} bytes of shared memory, {resources.shared_bytes - limit:,} too many", key="mainloop",
            allowed=f"{limit:,} B for each of {resources.ctas_per_sm} CTAs of a multiprocessor" + _advice(kernel),
            reason=table,
        )
    warps = resources.threads // 32 * resources.ctas_per_sm
    if warps > MAX_WARPS_PER_SM:
        raise ResourceError(f"{warps} warps on a multiprocessor", key="mainloop.ctas_per_sm", value=resources.ctas_per_sm, allowed=f"{MAX_WARPS_PER_SM} warps")
    for role in resources.roles[1:]:
        if role.registers % 8 or not 24 <= role.registers <= 240:
            raise ResourceError(
                f"{role.registers} registers per thread for role {role.name}", key="mainloop", value=role.registers, allowed="a multiple of 8 from 24 to 240",
                reason="setmaxnreg takes no others",
            )  # fmt: skip
    for name, _, registers in register_table(resources):
        if registers < 24:
            raise ResourceError(
                f"{registers} registers per thread are left for role {name}", key="mainloop.ctas_per_sm", value=resources.ctas_per_sm, allowed="24 or more",
                reason=", ".join(f"{r} {w} warps x {n}" for r, w, n in register_table(resources)) + f"; {REGISTERS_PER_SM:,} registers a multiprocessor",
            )
    for barrier in resources.barriers:
        if barrier.arrive_count < 1:
            raise ResourceError(f"barrier {barrier.name} needs an arrive count of 1 or more", key="ring", value=barrier.arrive_count)
    used = sorted(i for b in resources.named for i in range(b.first_id, b.first_id + b.slots))
    if len(used) != len(set(used)) or any(not 8 <= i < NAMED_BARRIERS for i in used):
        raise ResourceError(
            f"named barriers {used} collide or are out of range", key="mainloop", allowed="distinct ids 8 .. 15",
            reason="the compiler takes ids from 0 up for roles: 0, 1 and one per worker",
        )
