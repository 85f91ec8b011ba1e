"""Programs, roles, and programmatic dependent launch."""

import pytest
import torch

from tle_attn import emu


def test_program_ids_and_static_loops(load_text):
    module = load_text("""
@jit
def f(out):
    me = (program_id(2) * num_programs(1) + program_id(1)) * num_programs(0) + program_id(0)
    for j in static_range(3):
        store(out + me * 3 + j, me * 10 + j)
""")
    out = torch.zeros(24, 3, dtype=torch.int32)
    stats = emu.launch(module.f, (2, 3, 4), dict(out=("*i32", out)))
    assert torch.equal(out, torch.arange(24, dtype=torch.int32)[:, None] * 10 + torch.arange(3, dtype=torch.int32))
    assert stats.ctas == 24


def test_persistent_loops(load_text):
    module = load_text("""
@jit
def f(out, n):
    task = program_id(0)
    while task < n:
        store(out + task, task * task)
        task += num_programs(0)
""")
    out = torch.zeros(50, dtype=torch.int32)
    emu.launch(module.f, (7,), dict(out=("*i32", out), n=("i32", 50)))
    assert torch.equal(out, torch.arange(50, dtype=torch.int32) ** 2)


ROLES = """
@jit
def main_role(x, box):
    return smem_load(box)


@jit
def worker(x, at, value):
    store(x + at, value)


@jit
def f(x):
    box = alloc_plain([32], I32)
    smem_store(box, vec_index(32))
    seen = warp_specialize([(main_role, (x, box)), (worker, (x, 40, 7)), (worker, (x, 41, 8))], [1, 4], [24, 40])
    store(x + vec_index(32), seen + load(x + 40) + load(x + 41))
    warp_specialize([(worker, (x, 42, 1)), (worker, (x, 43, 2))], [2], [24])
"""


def test_roles_begin_after_their_parent_and_end_before_it_goes_on(load_text):
    entry = load_text(ROLES).f
    for seed in range(8):
        x = torch.zeros(44, dtype=torch.int32)
        emu.launch(entry, (1,), dict(x=("*i32", x)), seed=seed)
        assert torch.equal(x[:32], torch.arange(32, dtype=torch.int32) + 15) and x[42:].tolist() == [1, 2]


@pytest.mark.parametrize("old, new, error, message", [
    ("(worker, (x, 41, 8))", "(worker, (x, 40, 8))", emu.Race, "worker#.'s store overwrites x without any order after worker#"),
    ("[1, 4], [24, 40]", "[1], [24]", emu.EmulationError, "2 worker.s., 1 warp counts, 1 register counts"),
    ("[1, 4], [24, 40]", "[1, 3], [24, 40]", emu.EmulationError, "worker with 3 warps"),
    ("(worker, (x, 41, 8))", "(worker, (x, 41, vec_index(32)))", emu.EmulationError, "a tile cannot be passed to worker worker"),
    ("(worker, (x, 41, 8))", "(f, (x,))", emu.EmulationError, "an allocation inside a role"),
])  # fmt: skip
def test_wrong_roles(load_text, old, new, error, message):
    assert old in ROLES
    for seed in range(4):
        with pytest.raises(error, match=message):
            emu.launch(load_text(ROLES.replace(old, new)).f, (1,), dict(x=("*i32", torch.zeros(44, dtype=torch.int32))), seed=seed)


def test_an_error_of_the_text_itself_names_the_role(load_text):
    with pytest.raises(NameError) as report:
        emu.launch(load_text(ROLES.replace("store(x + at, value)", "store(x + at, missing)")).f, (1,), dict(x=("*i32", torch.zeros(44, dtype=torch.int32))))
    assert any("in worker#" in note for note in report.value.__notes__)


DEPENDENT = """
@jit
def f(x, out):
    {0}
    i = vec_index(32)
    value = load(x + i)
    {1}
    grid_launch_dependents()
    store(out + program_id(0) * 32 + i, value)
"""


def test_what_the_previous_kernel_writes_is_read_after_grid_wait(load_text):
    x, out = torch.arange(32, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    args = dict(x=("*i32", x), out=("*i32", out))
    stats = emu.launch(load_text(DEPENDENT.format("grid_wait()", "pass")).f, (2,), args, dependent={"x"})
    assert torch.equal(out, x.repeat(2)) and stats.dependent_launches == 2
    for first, second in (("pass", "pass"), ("pass", "grid_wait()")):
        with pytest.raises(emu.Race, match="reads x without any order after the previous kernel's write"):
            emu.launch(load_text(DEPENDENT.format(first, second)).f, (2,), args, dependent={"x"})


def test_grid_wait_of_one_role_reaches_others_through_barriers(load_text):
    text = """
@jit
def waiter(ready):
    grid_wait()
    barrier_arrive(ready[0])


@jit
def reader(x, ready):
    {0}
    load(x)


@jit
def f(x):
    ready = alloc_barriers(1)
    warp_specialize([(reader, (x, ready)), (waiter, (ready,))], [1], [24])
"""
    args = dict(x=("*i32", torch.zeros(1, dtype=torch.int32)))
    for seed in range(4):
        emu.launch(load_text(text.format("barrier_wait(ready[0], 0)")).f, (1,), args, dependent={"x"}, seed=seed)
        with pytest.raises(emu.Race):
            emu.launch(load_text(text.format("role_sync()")).f, (1,), args, dependent={"x"}, seed=seed)
