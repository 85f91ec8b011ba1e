"""Commands of `tle-attn`.  Imports of the composer are inside the commands, so that `--help` is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import OK, WRONG
from .options import read_axis, read_recipe

if TYPE_CHECKING:
    from ..recipe import Recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compose, check, generate, verify and compile attention kernels for NVIDIA Hopper.  A GPU is needed by bench and tune, and by verify for the targets gluon and tle.",
    epilog="Exit status: 0 done, 1 a result is wrong, 2 the input was refused (no such recipe, option, value or target, or blocks that do not fit), 3 it cannot run on this machine.",
)


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"tle-attn {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
    modules: Annotated[
        list[Path], typer.Option("--import", metavar="FILE.py", help="Import a Python file whose blocks recipes then find by name.  Repeatable; before the command.")
    ] = [],
) -> None:
    if modules:
        from ..spec import import_blocks

        for module in modules:
            import_blocks(module)


RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of the library (see `tle-attn list`) or a .toml file.", show_default=False)]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override an option, e.g. ring.stages=2.  VALUE is TOML; a bare word is a string.  Repeatable."),
]
TunedFor = Annotated[str, typer.Option("--tuned", metavar="GPU", help='Use the options that were tuned on this GPU, e.g. "NVIDIA H200"; "this" is the machine\'s own.')]
AllPoints = Annotated[bool, typer.Option("--all-points", help="Every point of the recipe's variant axes, not only the first.")]
Seed = Annotated[int, typer.Option(help="Seed of the random problems and of the emulation's schedule.")]
WorkloadName = Annotated[
    str | None,
    typer.Option("--workload", metavar="NAME", help="Workload of the benchmarks that times are for, of the recipe's phase (decode or prefill).", show_default=False),
]


def _kernels(recipe: Recipe, all_points: bool) -> list[tuple[str, Any]]:
    """(name with its point, kernel) of the default point, or of every point."""
    from ..report.family import point_label

    points = list(recipe.points()) if all_points else [next(recipe.points())]
    return [(f"{recipe.name} {point_label(point)}".strip(), recipe.kernel(point)) for point in points]


@app.command("list")
def list_command(blocks: Annotated[bool, typer.Option("--blocks", help="List the blocks that recipes are made of instead, with their options.")] = False) -> None:
    """List the recipes of the library."""
    from ..errors import plain
    from ..recipe import list_recipes, load
    from ..report.blocks import blocks_table
    from ..report.table import Table
    from .printing import show_table

    if blocks:
        show_table(blocks_table())
        return
    recipes = [load(name) for name in list_recipes()]
    rows = [(r.name, r.summary, "\n".join(f"{k} = {', '.join(map(plain, v))}" for k, v in r.axes.items())) for r in recipes]
    show_table(Table("", ("recipe", "summary", "variant axes"), rows))


@app.command()
def explain(
    recipe: RecipeName,
    settings: Settings = [],
    tuned: TunedFor = "",
    workload: WorkloadName = None,
    protocol: Annotated[bool, typer.Option(help="Explore the barrier protocol in emulation.")] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one self-contained page instead, with pictures of blocks, pipeline and shared memory.")] = None,
) -> None:
    """Show blocks, ports, buffers, barriers and their protocol, roles, kernel arguments and the time floor of a recipe."""
    from ..report import Workload
    from ..report import explain as explain_recipe
    from .printing import show_table

    read, chosen = read_recipe(recipe, settings, tuned), Workload.named(workload) if workload else None
    if html:
        from ..report.page import page

        html.write_text(page(read, chosen, protocol=protocol))
        print(html)
        return
    for table in explain_recipe(read, chosen, protocol=protocol):
        if markdown:
            print(table.markdown())
        else:
            show_table(table)


@app.command()
def generate(
    recipe: RecipeName,
    target: Annotated[str, typer.Option(help="gluon (stock Triton), tle (FlagTree) or cpu (emulation).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the modules; made if it is not there.")],
    settings: Settings = [],
    tuned: TunedFor = "",
    all_points: AllPoints = False,
) -> None:
    """Write the generated module of a recipe: one file that needs nothing but torch and its Triton."""
    from .. import codegen

    for _, kernel in _kernels(read_recipe(recipe, settings, tuned), all_points):
        generated = codegen.generate(kernel, target)
        out.mkdir(parents=True, exist_ok=True)
        file = out / f"{generated.module_name}.py"
        file.write_text(generated.text)
        print(file)


@app.command()
def verify(
    recipe: RecipeName,
    target: Annotated[list[str], typer.Option(help="cpu, tle-emulated, gluon (on a Hopper GPU), tle (and FlagTree).  Repeatable; both emulations if none is named.")] = [],
    settings: Settings = [],
    tuned: TunedFor = "",
    all_points: AllPoints = False,
    seed: Seed = 0,
) -> None:
    """Run a recipe on random ragged problems and compare with the float64 oracle; in emulation, explore its barrier protocol too."""
    from ..checks import explore
    from ..errors import TargetUnavailable
    from ..runtime.executors import TARGETS, unknown_target
    from ..verify import EMULATED, tolerance, verify_kernel

    for where in target:
        if where not in TARGETS:
            raise unknown_target(where)
    wanted = target or EMULATED
    wrong = False
    for name, kernel in _kernels(read_recipe(recipe, settings, tuned), all_points):
        for where in wanted:
            try:
                result = verify_kernel(kernel, where, seed=seed)
            except TargetUnavailable as unavailable:
                if target:
                    raise
                # tle-emulated, of what TLE cannot express
                print(f"-     {name}  {unavailable}")
                continue
            allowed, reason = tolerance(kernel)
            verdict = "ok   " if result.ok else "WRONG"
            error = f"relative RMS error {result.error:.2e} (allowed {allowed:.0e}: {reason})"
            print(f"{verdict} {name}  {where}: {error}, {result.problems} problems, {result.seconds:.1f} s")
            if not result.ok:
                wrong = True
                print(result.failure)
        if set(wanted) & set(EMULATED):
            report = explore(kernel)
            wrong |= not report.ok
            print(f"{'ok   ' if report.ok else 'WRONG'} {name}  protocol: {report}")
    raise typer.Exit(WRONG if wrong else OK)


@app.command("compile")
def compile_command(
    recipe: RecipeName,
    settings: Settings = [],
    tuned: TunedFor = "",
    all_points: AllPoints = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")] = False,
) -> None:
    """Compile the Gluon module for sm_90a and show registers, spills, shared memory and instructions."""
    from ..report.facts import facts_of, facts_table
    from .printing import show_table

    found = [(name, entry, facts) for name, kernel in _kernels(read_recipe(recipe, settings, tuned), all_points) for entry, facts in facts_of(kernel).items()]
    if as_json:
        print(json.dumps([{"kernel": name, "entry": entry, **facts.to_dict()} for name, entry, facts in found], indent=1))
    else:
        show_table(facts_table(found))


@app.command("export")
def export_command(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the export; made if it is not there, replaced if it is one.")],
    settings: Settings = [],
    tuned: TunedFor = "",
    axes: Annotated[
        list[str], typer.Option("--axis", metavar="KEY=[VALUES]", help="Values to compile for, e.g. problem.group=[8, 4], in place of the recipe's axis.  Repeatable."),
    ] = [],
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Compile every kernel of a recipe ahead of time into a folder that tle_attn.load takes and runs without compiling anything."""
    from ..exports import export
    from .printing import console
    from .progress import shown

    chosen = dict(read_axis(a) for a in axes)
    with shown(console(error=True)) as tell:
        print(export(read_recipe(recipe, settings, tuned), out, axes=chosen, jobs=jobs, tell=tell))


@app.command()
def bench(
    recipe: RecipeName,
    settings: Settings = [],
    tuned: TunedFor = "",
    all_points: AllPoints = False,
    workload: Annotated[list[str], typer.Option(metavar="NAME", help="Workloads of the benchmarks; all of the phase if not given.  Repeatable.")] = [],
) -> None:
    """Time a recipe on the GPU (CUDA-graph replays, inputs warm in L2)."""
    from ..report import Workload
    from ..report.bench import bench_table, require_gpu
    from ..report.floor import benchmark_workloads
    from .printing import show_table

    kernels = _kernels(read_recipe(recipe, settings, tuned), all_points)
    workloads = [Workload.named(name) for name in workload] or benchmark_workloads(kernels[0][1].mainloop.PHASE)
    require_gpu("bench")
    show_table(bench_table(kernels, workloads))


@app.command()
def tune(
    recipe: RecipeName,
    settings: Settings = [],
    all_points: AllPoints = False,
    workload: Annotated[list[str], typer.Option(metavar="NAME", help="Workloads to be fast on; all of the phase if not given.  Repeatable.")] = [],
    only: Annotated[list[str], typer.Option(metavar="KEY", help="Tunable option to vary; all if not given.  Repeatable.")] = [],
    jobs: Annotated[int, typer.Option(min=1, help="Processes that compile.")] = 8,
) -> None:
    """Time the combinations of a recipe's tunable options on the GPU and keep the fastest in recipes/tuned/, for --tuned."""
    from ..build import versions
    from ..recipe.tuned import this_gpu, write_tuned
    from ..report import Workload
    from ..report.bench import require_gpu, time_kernel
    from ..report.floor import benchmark_workloads
    from ..report.timing import Timer
    from ..report.tune import compile_in_processes
    from ..report.tune import tune as tune_kernel
    from ..verify import verify_kernel
    from .printing import console, show_table
    from .progress import shown

    read = read_recipe(recipe, settings)
    points = list(read.points()) if all_points else [next(read.points())]
    workloads = [Workload.named(name) for name in workload] or benchmark_workloads(read.kernel().mainloop.PHASE)
    require_gpu("tune")
    timer = Timer()
    for point in points:
        with shown(console(error=True)) as tell:
            tuning = tune_kernel(
                read, point, workloads, measure=lambda kernel, w: time_kernel(kernel, w, timer), only=only, jobs=jobs, compile_ahead=compile_in_processes, tell=tell
            )
        show_table(tuning.table())
        # an option that is declared tunable changes no result: checked before it is recommended
        checked = verify_kernel(read.set(tuning.changed).kernel(point), "gluon")
        if not checked.ok:
            print(checked.failure)
            raise typer.Exit(WRONG)
        print(write_tuned(read, [tuning.result(str(this_gpu()), versions())]))


@app.command()
def diff(
    a: RecipeName,
    b: RecipeName,
    target: Annotated[str, typer.Option(help="Target whose generated text is compared.")] = "gluon",
    settings: Settings = [],
    code: Annotated[bool, typer.Option(help="Compare the generated code too.")] = True,
) -> None:
    """Compare two recipes as specs and as generated code.  --set applies to both."""
    from ..report import Table, code_diff, differences
    from .printing import show_table

    left, right = read_recipe(a, settings), read_recipe(b, settings)
    rows = [(d.key, d.a, d.b) for d in differences(left, right)]
    show_table(Table("Specs", ("key", left.name, right.name), rows, "" if rows else "The specs are the same."))
    if code:
        lines = code_diff(left.kernel(), right.kernel(), target)
        print("\n".join(lines) if lines else f"The generated code ({target}) is the same.")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new recipe; NAME.toml is written.", show_default=False)],
    parent: Annotated[str, typer.Option("--from", metavar="RECIPE", help="Recipe that it extends.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the file.")] = Path("."),
) -> None:
    """Write a recipe file that extends another one and is valid at once."""
    from .scaffold import write_recipe

    print(write_recipe(name, parent, out))


@app.command()
def hy3(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for modules and report.md.")] = Path("build/hy3"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    seed: Seed = 0,
    workload: WorkloadName = None,
) -> None:
    """Generate, compile and verify every recipe under hy3/, and report; with a Hopper GPU also run and time them there."""
    from ..report import Workload
    from ..report.family import build_family, family_table, write_report
    from .printing import console, show_table
    from .progress import shown

    chosen = Workload.named(workload) if workload else None
    with shown(console(error=True)) as tell:
        rows = build_family("hy3", out, jobs=jobs, seed=seed, workload=chosen, tell=tell)
    show_table(family_table(rows))
    print(f"report: {write_report(rows, out)}")
    raise typer.Exit(OK if all(row.ok for row in rows) else WRONG)
