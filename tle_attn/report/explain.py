"""Explain: a kernel as tables, with its blocks, ports, buffers, barriers, roles, arguments and the time floor of its work."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks import explore
from ..checks.resources import register_cap, register_table, shared_limit, shared_table
from ..codegen import generate
from ..errors import plain
from ..spec.flat import recipe_options
from ..spec.resources import REGISTERS_PER_SM
from ..verify import oracle_options
from .compare import differences
from .floor import AnyWorkload, require_phase, work_of, workload_for
from .table import Table

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel


def explain(recipe: Recipe, workload: AnyWorkload | None = None, *, protocol: bool = True) -> list[Table]:
    """Everything about the default point of a recipe, as tables.

    Args:
        recipe: the recipe, options already set.
        workload: what the time floor is for; a usual one of the kernel's phase if not given.
        protocol: explore the barrier protocol in emulation (a second or two), where there are barriers.
    """
    kernel = recipe.kernel()
    if workload is not None:
        require_phase(kernel, workload)
    tables = [head(recipe, kernel), blocks(kernel), ports(kernel)]
    if kernel.resources.barriers:
        tables += [shared_memory(kernel), barriers(kernel)]
    tables.append(roles(kernel))
    if protocol and kernel.resources.barriers:
        tables.append(barrier_protocol(kernel))
    tables += [*arguments(kernel), floor(kernel, workload_for(kernel, workload))]
    if recipe.parents:
        tables.append(against_parent(recipe))
    return tables


def head(recipe: Recipe, kernel: Kernel) -> Table:
    rows = [("summary", recipe.summary), ("file", recipe.file or "composed in Python")]
    if recipe.parents:
        rows.append(("extends", " <- ".join(recipe.parents)))
    rows += [(f"problem.{a}", plain(getattr(kernel.problem, a))) for a in problem_keys(kernel)]
    rows += [(f"axis {key}", ", ".join(map(plain, values))) for key, values in recipe.axes.items()]
    return Table(recipe.name, ("", ""), rows, "The tables below are for the first value of every axis; --set chooses another." if recipe.axes else "")


def problem_keys(kernel: Kernel) -> tuple[str, ...]:
    """Keys of [problem] that matter to the kernel."""
    if kernel.mainloop.PHASE == "merge":
        return ("head_dim",)
    decode = ("query_tokens",) if kernel.mainloop.PHASE == "decode" else ()
    paged = ("page",) if "block_ids" in kernel.arguments else ()
    values = ("value_dim",) if kernel.problem.value_dim is not None else ()
    return ("dtype", "head_dim", *values, "group", *decode, *paged)


def blocks(kernel: Kernel) -> Table:
    """Blocks in recipe order with all options."""
    rows = [(where, b.NAME, "\n".join(f"{k} = {plain(v)}" for k, v in recipe_options(b).items()), b.title()) for where, b in kernel.blocks]
    return Table("Blocks", ("slot", "block", "options", "what it is"), rows)


def ports(kernel: Kernel) -> Table:
    """Typed values that pass between blocks: who provides a function, who calls it."""
    callers: dict[str, list[str]] = {}
    for where, block in kernel.blocks:
        for function in block.requires(kernel.problem):
            callers.setdefault(function.name, []).append(where)
    rows = [
        (f.name, where, ", ".join(callers.get(name, [])), "\n".join([str(p) for p in f.inputs] + [f"-> {p}" for p in f.outputs]))
        for name, (where, f) in kernel.provided.items()
        if f.inputs or f.outputs or name in callers
    ]
    return Table("Ports", ("function", "provided by", "called by", "values in, values out (->)"), rows)


def shared_memory(kernel: Kernel) -> Table:
    resources = kernel.resources
    limit = shared_limit(resources.ctas_per_sm)
    held = {b.name: b.holds for b in resources.buffers}
    rows = [(name, what, held.get(name, ""), f"{nbytes:,}") for name, what, nbytes in shared_table(resources)]
    note = f"Limit {limit:,} B for each of {resources.ctas_per_sm} CTAs of a multiprocessor; {limit - resources.shared_bytes:,} B are free."
    return Table("Shared memory", ("buffer", "shape", "holds", ">bytes"), rows, note)


def barriers(kernel: Kernel) -> Table:
    """Mbarriers and named barriers: what completes a use, who arrives, who waits."""
    rows = []
    for b in kernel.resources.barriers:
        completes = f"{b.arrive_count} arrival{'s' if b.arrive_count > 1 else ''}" + (f" + {b.expect_bytes:,} B" if b.expect_bytes else "")
        rows.append((b.name, str(b.slots), completes, ", ".join(b.arrives), ", ".join(b.waits), "free" if b.ready else "in use"))
    for n in kernel.resources.named:
        ids = ", ".join(map(str, range(n.first_id, n.first_id + n.slots)))
        rows.append((n.name, str(n.slots), f"{n.threads} threads (named barrier {ids})", "", "", ""))
    return Table("Barriers", ("barrier", ">slots", "a use completes with", "who arrives", "who waits", "starts"), rows)


def barrier_protocol(kernel: Kernel) -> Table:
    """What running the kernel without arithmetic found, for the tile counts where a ring starts, fills and wraps around."""
    report = explore(kernel, seeds=1)
    rows = [
        ("key tiles", "around " + ", ".join(map(str, report.tiles))),
        ("batches", "\n".join(report.batches)),
        ("explored", f"{report.ctas:,} CTAs, {report.copies:,} copies, {report.waits:,} waits"),
        ("result", report.failure or "no fault"),
    ]
    return Table("Barrier protocol", ("", ""), rows, "The generated cpu module, run in emulation: every access is checked for order, in any schedule.")


def roles(kernel: Kernel) -> Table:
    resources = kernel.resources
    functions = {r.name: r.function for r in resources.roles}
    table = register_table(resources)
    rows = [(name, functions[name], str(warps), str(registers), f"{32 * warps * registers:,}") for name, warps, registers in table]
    cap = register_cap(resources)
    padding = resources.threads // 32 - sum(warps for _, warps, _ in table)
    note = (
        f"Launched with {resources.threads} threads of at most {cap} registers: {resources.ctas_per_sm} x {resources.threads} x {cap} = "
        f"{resources.ctas_per_sm * resources.threads * cap:,} of {REGISTERS_PER_SM:,} of a multiprocessor."
    )
    if padding:
        note += f" {padding} idle warp{'s' if padding > 1 else ''} pad the workers to a whole warpgroup."
    return Table("Roles", ("role", "function", ">warps", ">registers a thread", ">registers"), rows, note)


def arguments(kernel: Kernel) -> list[Table]:
    """Arguments of each kernel of the module, in order."""
    tables = []
    for entry in generate(kernel, "gluon").entries:
        rows = [(a.name, str(a.type), a.doc + (f"; a multiple of {a.divisible}" if a.divisible > 1 else "")) for a in entry.arguments]
        tables.append(Table(f"Kernel {entry.name}: {kernel.mainloop.launch_note(kernel.problem, entry.name)}", ("argument", "type", "meaning"), rows))
    return tables


def floor(kernel: Kernel, workload: AnyWorkload) -> Table:
    work = work_of(kernel, workload, oracle_options(kernel))
    machine = work.machine
    rate = machine.flops[work.dtype]
    rows = [
        ("memory", f"{work.nbytes / 1e6:,.1f} MB", f"{machine.bytes_per_second / 1e12:.2f} TB/s", f"{work.memory_us:.2f}"),
        ("products", f"{work.flops / 1e9:,.2f} GFLOP", f"{rate / 1e12:.0f} TFLOP/s {work.dtype}", f"{work.compute_us:.2f}"),
        ("floor", "", "the larger of the two", f"{work.floor_us:.2f}"),
    ]
    return Table(f"Time floor of {workload}", ("", "work", "rate", ">us"), rows, f"Rates: {machine.source}. Data that is still in L2 can be read faster.")


def against_parent(recipe: Recipe) -> Table:
    parent = parent_of(recipe)
    rows = [(d.key, d.a, d.b) for d in differences(parent, recipe)]
    return Table(f"Differences against {parent.name}", ("key", parent.name, recipe.name), rows, "" if rows else "None.")


def parent_of(recipe: Recipe) -> Recipe:
    """The recipe that `recipe` extends: beside its file, or of the library."""
    from ..recipe import load

    file = Path(str(recipe.file))
    wanted = tomllib.loads(file.read_text())["extends"]
    beside = file.parent / wanted
    return load(beside if beside.suffix == ".toml" and beside.is_file() else wanted)
