"""What a tensor descriptor must be for TMA."""

import pytest
import torch

from tle_attn import emu

WRONG = {
    "inner stride": (dict(strides=(128, 2)), "inner stride 2"),
    "stride in odd bytes": (dict(strides=(12, 1), dtype="bf16"), "multiples of 16 bytes"),
    "box too wide": (dict(block_shape=(257, 64)), "sides of 1 .. 256"),
    "box rows too short": (dict(block_shape=(8, 4)), "multiples of 16 bytes"),
    "ranks": (dict(block_shape=(64,)), "equal in all"),
    "type": (dict(dtype="f64"), "a descriptor of type 'f64'"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_rules(change, message):
    given = dict(tensor=torch.zeros(64, 64, dtype=torch.bfloat16), shape=(64, 64), strides=(64, 1), block_shape=(16, 64), dtype=None)
    emu.TensorDescriptor(**given)
    with pytest.raises(emu.EmulationError, match=message):
        emu.TensorDescriptor(**(given | change))


def test_alignment_of_the_address():
    with pytest.raises(emu.EmulationError, match="16-byte aligned"):
        emu.TensorDescriptor(torch.zeros(65)[1:], (64,), (1,), (64,))


def test_a_shape_past_the_tensor_is_found_at_launch(load_text):
    x = torch.zeros(16, 64)
    entry = load_text("@jit\ndef f(desc):\n    program_id(0)\n").f
    emu.launch(entry, (1,), dict(desc=emu.TensorDescriptor(x, (16, 64), (64, 1), (8, 64))))
    with pytest.raises(emu.EmulationError, match="descriptor desc of shape .17, 64.* reaches past its tensor"):
        emu.launch(entry, (1,), dict(desc=emu.TensorDescriptor(x, (17, 64), (64, 1), (8, 64))))


def test_one_descriptor_serves_several_launches_and_names(load_text):
    x = torch.zeros(16, 64)
    desc = emu.TensorDescriptor(x, (16, 64), (64, 1), (8, 64))
    emu.launch(load_text("@jit\ndef f(a, b):\n    program_id(0)\n").f, (1,), dict(a=desc, b=("desc", desc)))
    emu.launch(load_text("@jit\ndef f(c):\n    program_id(0)\n").f, (1,), dict(c=desc))
