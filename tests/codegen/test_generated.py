"""Every kernel of the library, generated: the same text for every target, deterministic, standalone, and free of what is off."""

import ast
import builtins
import os
import random
import subprocess
import sys

import pytest

import tle_attn
from tle_attn.codegen import MARK, generate
from tle_attn.codegen.prelude import TARGETS
from tle_attn.runtime.executors import import_generated, module_file

#: every recipe at its default point, and one of the family at every page and query count
DEFAULTS = [(name, next(tle_attn.load(name).points())) for name in tle_attn.list_recipes()]
POINTS = DEFAULTS + [("hy3/decode_bf16", point) for point in list(tle_attn.load("hy3/decode_bf16").points())[1:]]


def ids(points: list) -> list[str]:
    return ["-".join([name, *map(str, point.values())]) for name, point in points]


def kernel_of(name: str, point: dict):
    return tle_attn.load(name).kernel(point)


@pytest.mark.parametrize("name,point", POINTS, ids=ids(POINTS))
def test_one_text_for_all_targets(name, point):
    kernel = kernel_of(name, point)
    texts = [generate(kernel, target).text.split(MARK + "\n") for target in TARGETS]
    assert len({body for _, body in texts}) == 1 and all(len(parts) == 2 for parts in texts), "the mark stands once"
    assert texts[0][1].isascii()
    for head, _ in texts:
        assert ast.get_docstring(ast.parse(head)).startswith(name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name,point", DEFAULTS, ids=[n for n, _ in DEFAULTS])
def test_every_name_is_defined_before_it_is_used(name, point, target):
    """Functions refer to what the module defines, imports or has from Python; nothing is defined twice or for nothing."""
    generated = generate(kernel_of(name, point), target)
    tree = ast.parse(generated.text)
    defined: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined += [(a.asname or a.name).split(".")[0] for a in node.names]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            defined.append((node.targets[0] if isinstance(node, ast.Assign) else node.target).id)
    assert len(defined) == len(set(defined)), "defined twice"
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    loads = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    local = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    local |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    nowhere = loads - set(defined) - local - set(vars(builtins))
    assert not nowhere, f"used, and defined nowhere: {nowhere}"
    spare = set(defined) - loads - {e.name for e in generated.entries}
    assert not spare, f"defined, and used nowhere: {spare}"


@pytest.mark.parametrize("name,point", POINTS, ids=ids(POINTS))
def test_the_cpu_module_imports(name, point):
    generated = generate(kernel_of(name, point), "cpu")
    module = import_generated(module_file(generated))
    assert all(callable(getattr(module, entry.name)) for entry in generated.entries)


@pytest.mark.parametrize("name,point", DEFAULTS, ids=[n for n, _ in DEFAULTS])
def test_a_line_leads_back_to_the_block_that_wrote_it(name, point):
    generated = generate(kernel_of(name, point), "gluon")
    lines = generated.text.splitlines()
    for first, last, owner, file, line in generated.line_map:
        assert lines[first - 1].strip() == "@jit" and owner in generated.origin(first)
        if not file.startswith("<"):
            name_here = next(text for text in lines[first:last] if text.startswith("def ")).split("(")[0]
            with open(file) as source:
                assert source.read().splitlines()[line].startswith(name_here)


def test_a_kernel_of_a_variant_differs_where_its_option_says():
    plain, capped = (generate(tle_attn.load(f"{n}").kernel(), "cpu").text.split(MARK)[1] for n in ("hy3/decode_bf16", "variants/decode_bf16_soft_cap"))
    assert "soft_cap_scores" in capped and "CAP_LOG2" in capped
    assert "soft_cap" not in plain and "CAP" not in plain


def test_the_same_bytes_in_every_process():
    """Nothing depends on hash order, on what was generated before, or on the working folder: some recipes, others each time (the golden files are compared in every run)."""
    names = random.sample(tle_attn.list_recipes(), 12)
    code = "import sys, tle_attn; sys.stdout.write(' '.join(tle_attn.generate(tle_attn.load(n).kernel(), t).digest for n in sys.argv[1:] for t in ('gluon', 'tle', 'cpu')))"
    here = [generate(tle_attn.load(n).kernel(), t).digest for n in names for t in ("gluon", "tle", "cpu")]
    root = os.path.dirname(os.path.dirname(os.path.abspath(tle_attn.__file__)))
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": root}
    there = subprocess.run([sys.executable, "-c", code, *names], env=environment, cwd="/", capture_output=True, text=True, check=True).stdout.split()
    assert there == here
