"""Launches: arguments, grids, residency, places in reports, cleaning up after an error."""

import subprocess
import sys

import pytest
import torch

from tle_attn import emu

NOTHING = "@jit\ndef f(x):\n    program_id(0)\n"

WRONG_ARGUMENTS = {
    "a tensor of another type": (dict(x=("*f32", torch.zeros(4, dtype=torch.bfloat16))), "argument x: a tensor of bfloat16 where f32"),
    "a number for a pointer": (dict(x=("*f32", 3)), "argument x: a tensor of int"),
    "an unknown type": (dict(x=("f64", 1.0)), "argument x of type 'f64'"),
    "no type": (dict(x=torch.zeros(4)), "a .type, value. pair"),
    "a number that is too large": (dict(x=("i32", 2**31)), "32-bit integer overflow"),
}


@pytest.mark.parametrize("args, message", WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments(load_text, args, message):
    with pytest.raises(emu.EmulationError, match=message):
        emu.launch(load_text(NOTHING).f, (1,), args)


@pytest.mark.parametrize("options, message", [
    (dict(grid=()), "one to three counts"),
    (dict(grid=(1, 1, 1, 1)), "one to three counts"),
    (dict(grid=(1.5,)), "one to three counts"),
    (dict(cluster=17), "clusters of 17"),
    (dict(threads=96), "96 threads"),
    (dict(resident=1, cluster=2), "hold no cluster of 2"),
    (dict(workspace={"y"}), r"workspace or dependent names no tensor argument: \['y'\]"),
    (dict(dependent={"n"}), r"names no tensor argument: \['n'\]"),
])  # fmt: skip
def test_wrong_launches(load_text, options, message):
    text = "@jit\ndef f(x, n):\n    program_id(0)\n"
    with pytest.raises(emu.EmulationError, match=message):
        emu.launch(load_text(text).f, args=dict(x=("*f32", torch.zeros(4)), n=("i32", 1)), **dict(dict(grid=(1,)), **options))


def test_an_empty_grid_does_nothing(load_text):
    assert emu.launch(load_text(NOTHING).f, (4, 0), dict(x=("i32", 1))).ctas == 0


def test_ctas_start_in_launch_order_as_room_is_made(load_text):
    module = load_text("""
@jit
def f(order, counter):
    ticket = atomic_add(counter, 1, sem="relaxed")
    store(order + ticket, program_id(0) + program_id(1) * num_programs(0))
""")
    for resident in (1, 3, 12):
        for seed in range(4):
            order, counter = torch.zeros(12, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
            stats = emu.launch(module.f, (4, 3), dict(order=("*i32", order), counter=("*i32", counter)), resident=resident, seed=seed)
            assert stats.most_resident == resident and sorted(order.tolist()) == list(range(12))
            assert all(cta <= ticket + resident - 1 for ticket, cta in enumerate(order.tolist()))


def test_reports_quote_the_text_and_not_the_prelude(load_text):
    module = load_text(f"""from tle_attn.dialect.cpu import *


def helper(x):
    return load(x + 9)


{emu.MARK}
@jit
def f(x):
    y = helper(x)
""")
    args = dict(x=("*f32", torch.zeros(4)))
    with pytest.raises(emu.OutOfBounds, match=r"x: element 9 of 4 at f:11  `y = helper\(x\)`"):
        emu.launch(module.f, (1,), args)
    with pytest.raises(emu.OutOfBounds, match=r"at helper:5  `return load\(x \+ 9\)`"):
        emu.launch(module.f, (1,), args, source=(module.__file__, 1))


def test_the_name_of_a_role_shows_its_cta(load_text):
    text = "@jit\ndef f():\n    bars = alloc_barriers(1)\n    barrier_wait(bars[0], 0)\n"
    for grid, name in {(1,): "  f", (4,): r"cta\(3\).f", (2, 3): r"cta\(1, 2\).f", (1, 1, 2): r"cta\(0, 0, 1\).f"}.items():
        with pytest.raises(emu.Deadlock, match=name + r" waits for use 0 of bars\[0\]"):
            emu.launch(load_text(text).f, grid, {})


@pytest.mark.parametrize("backend", ["greenlet", "thread"])
def test_a_launch_after_an_error_starts_afresh(load_text, backend):
    module = load_text("""
@jit
def wait(bars):
    barrier_wait(bars[0], 0)


@jit
def fail(x, bars):
    load(x + 99)


@jit
def f(x):
    bars = alloc_barriers(1)
    warp_specialize([(wait, (bars,)), (fail, (x, bars))], [1], [24])
""")
    good = load_text("@jit\ndef f(x):\n    store(x, 5.0)\n")
    for seed in range(4):
        x = torch.zeros(4)
        with pytest.raises(emu.OutOfBounds):
            emu.launch(module.f, (3,), dict(x=("*f32", x)), backend=backend, seed=seed)
        emu.launch(good.f, (1,), dict(x=("*f32", x)), backend=backend)
        assert x[0] == 5


def test_a_launch_inside_a_launch_is_refused(load_text):
    module = load_text("@jit\ndef f():\n    again()\n")
    module.again = lambda: emu.launch(module.f, (1,), {})
    with pytest.raises(emu.EmulationError, match="a launch inside a launch"):
        emu.launch(module.f, (1,), {})


def test_threads_are_taken_where_greenlet_is_missing(load_text, monkeypatch):
    monkeypatch.setattr("tle_attn.emu.coroutines.greenlet", None)
    x = torch.zeros(4)
    emu.launch(load_text("@jit\ndef f(x):\n    store(x, 5.0)\n").f, (1,), dict(x=("*f32", x)))
    assert x[0] == 5
    with pytest.raises(ModuleNotFoundError, match=r"pip install tle-attn\[emu\]"):
        emu.launch(load_text(NOTHING).f, (1,), dict(x=("i32", 1)), backend="greenlet")


def test_an_unknown_backend_is_refused(load_text):
    with pytest.raises(ValueError, match="'greenlet' or 'thread'"):
        emu.launch(load_text(NOTHING).f, (1,), dict(x=("i32", 1)), backend="fibre")


def test_importing_the_emulation_does_not_import_torch():
    code = "import sys, tle_attn.emu, tle_attn.dialect.cpu; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
