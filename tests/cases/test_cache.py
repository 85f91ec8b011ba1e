"""Case 28: what a compiled kernel is found by.  27, and the options of the compiler, are in tests/build/test_cache.py."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields

import tle_attn
from tests.cases.helpers import SOFT_CAP, STATIC, WINDOW
from tle_attn.checks.resources import register_cap
from tle_attn.codegen import generate
from tle_attn.runtime.executors import build_signature
from tle_attn.spec import Block, DType, Kernel

REPOSITORY = Path(tle_attn.__file__).parent.parent
#: another value of every option of the library's blocks, by its name or by the kind of block and its name
OTHER = {
    "evict_first": False, "stages": 2, "maximum": "exact", "p_exponent": 3, "min_tokens": 1024, "splits": 8, "poll_above": 3, "lse": "e", "ctas_per_sm": 1,
    "producer_registers": 40, "cap": 30.0, "window": 17, "dtype": DType.F32,
    "base": "2", "unroll": 2, "count": 3, "empty_row": "nan", "registers": True, "sums": "fp32",
    "bias": -3.0, "size": 2, "score.value": "s - rate * (query - key)", "score.numbers": {"rate": 0.25}, "mask.value": "query - key < sinks + window",
    "mask.numbers": {"sinks": 4, "window": 256}, "pdl": True, "page_ids": False, "exchange": "pull", "merge": "sharded", "slice_above": 3,
}  # fmt: skip
#: options that ask for a check of the recipe and change nothing in the kernel
PROMISES = {"batch_invariant"}


def key_of(kernel: Kernel) -> tuple[Any, ...]:
    """What decides about the machine code: the module (but for its docstring and comments), types of the arguments, the bound on registers."""
    generated = generate(kernel, "gluon")
    tree = ast.parse(generated.text)
    return ast.dump(ast.Module(tree.body[1:], [])), str([build_signature(e.arguments) for e in generated.entries]), register_cap(kernel.resources)


def known_as(cls: type[Block], option: str) -> str:
    """The option's name in OTHER."""
    return option if option in OTHER else f"{cls.KIND}.{option}"


def changed(kernel: Kernel, only: set[str] | None) -> Iterator[tuple[str, Kernel]]:
    """(option, the kernel with another value of it) for every option of every block, or for these."""
    mainloop = kernel.mainloop
    for where, block in kernel.blocks:
        for option in fields(type(block)):
            if "slot" in option.metadata or "testing" in option.metadata or option.name in PROMISES or (only and option.name not in only):
                continue
            other = evolve(block, **{option.name: OTHER[known_as(type(block), option.name)]})
            slot = where.split("[")[0]
            if block is mainloop:
                made = other
            elif isinstance(getattr(mainloop, slot), tuple):
                made = evolve(mainloop, **{slot: tuple(other if b is block else b for b in getattr(mainloop, slot))})
            else:
                made = evolve(mainloop, **{slot: other})
            yield f"{where}.{option.name}", evolve(kernel, mainloop=made)


@pytest.mark.parametrize("recipe,only", [
    (WINDOW, None), (STATIC, {"splits", "min_tokens"}), (SOFT_CAP, {"cap"}), ("variants/decode_bf16_cluster", {"size", "exchange", "merge"}),
    ("variants/decode_bf16_detached", {"slice_above"}), ("variants/decode_bf16_sigmoid", {"bias"}),
    ("variants/decode_bf16_expression", {"value", "numbers"}), ("merge/stack", {"base", "dtype", "unroll"}), ("merge/list", {"count", "dtype"}),
    ("hy3/prefill_bf16", {"empty_row", "registers"}),
])  # fmt: skip
def test_28_every_option_of_every_block_changes_the_key(recipe, only):
    """And so no option is without effect on the kernel (case 30)."""
    kernel = tle_attn.load(recipe).kernel()
    keys = {"": key_of(kernel)} | {name: key_of(other) for name, other in changed(kernel, only)}
    assert len(keys) > (len(only) if only else 8)
    same = [name for name in keys if list(keys.values()).count(keys[name]) > 1]
    assert not same, f"options that share a key: {same}"


@pytest.mark.parametrize("problem", [{"group": 4}, {"query_tokens": 2}, {"page": 128}, {"head_dim": 64}])
def test_28_every_key_of_the_problem_changes_the_key(problem):
    recipe = tle_attn.load(WINDOW)
    assert key_of(recipe.kernel(**problem)) != key_of(recipe.kernel())


def test_28_all_options_are_known_here():
    """A new option must get a value in OTHER."""
    from tle_attn.spec import Mainloop, registered

    classes = [cls for cls in registered() if not issubclass(cls, Mainloop) or cls.NAME in ("decode", "merge")]
    names = {known_as(cls, a.name) for cls in classes for a in fields(cls) if not {"slot", "testing"} & set(a.metadata) and a.name not in PROMISES}
    assert names <= set(OTHER), f"options without another value here: {sorted(names - set(OTHER))}"


@pytest.mark.parametrize("file,old,new", [
    ("components/rings/mbarrier.py", "return i % STAGES", "return (i + STAGES) % STAGES"),
    ("components/v_operand/direct.cpu.py", "def publish_p(p_tile, p, limit):", "def publish_p(p_tile, p, limit, _unused=None):"),
])  # fmt: skip
def test_28_a_changed_file_is_noticed_by_the_next_process(file, old, new, tmp_path):
    """Of a block, of a microkernel: nothing is remembered by a file's name or version."""
    for folder in ("tle_attn", "components", "recipes"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / file
    text = path.read_text()
    assert old in text, "the file has changed, so should this test"
    path.write_text(text.replace(old, new))
    code = "import tle_attn; print(tle_attn.__file__, tle_attn.generate(tle_attn.load('hy3/decode_bf16').kernel(), 'cpu').digest)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    where, digest = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert digest != generate(tle_attn.load("hy3/decode_bf16").kernel(), "cpu").digest
