"""The library's registry, slots, and what a block says about itself."""

import pytest
from attrs import evolve, frozen

from tle_attn.components.epilogues.store import StoreEpilogue
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.masks.causal import Causal
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scores.alibi import Alibi
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Mainloop, Problem, Resources, find_block, registered, slot


def test_every_block_of_the_library_is_found_by_kind_and_name():
    blocks = registered()
    assert {c.KIND for c in blocks} >= {"loader", "ring", "qk", "scale", "score", "mask", "softmax", "v_operand", "schedule", "reduce", "epilogue", "mainloop"}
    for cls in blocks:
        assert find_block(cls.KIND, cls.NAME) is cls
        assert registered(cls.KIND).count(cls) == 1
        assert cls.source_file().parent.parent.name == "components"
        assert cls.title() and "\n" not in cls.title()
        assert cls.label() == f"{cls.KIND}/{cls.NAME}"


def test_unknown_block_names_the_library():
    with pytest.raises(SpecError) as caught:
        find_block("mask", "casual")
    assert "no mask block is called 'casual'" in str(caught.value)
    assert caught.value.allowed == sorted(c.NAME for c in registered("mask")) and "causal" in str(caught.value)


def test_defaults_mean_nothing():
    @frozen(kw_only=True)
    class Plain(Block):
        pass

    block, problem = Plain(), Problem()
    assert (block.check(problem), block.constants(problem), block.arguments(problem), block.provides(problem), block.requires(problem)) == (
        None,
        {},
        (),
        (),
        (),
    )
    assert block.resources(problem) == Resources()
    assert Plain not in registered(), "a class without a NAME is no block of the library"


def test_options_leave_slots_out():
    assert MbarrierRing(stages=4).options() == {"stages": 4, "readers": 1}
    options = DecodeMainloop().options()
    assert options["ctas_per_sm"] == 2 and not set(options) & set(DecodeMainloop.slots())


class TestSlots:
    def test_parts_are_in_slot_order_with_the_mainloop_last(self):
        loop = DecodeMainloop(score=(Alibi(), SoftCap(cap=2.0)), mask=(Causal(),))
        where = [w for w, _ in loop.parts()]
        assert where == [*[n for n in DecodeMainloop.slots() if n not in ("score", "mask")][:4], "score[0]", "score[1]", "mask[0]", *where[7:]]
        assert where[-1] == "mainloop" and dict(loop.parts())["score[1]"].cap == 2.0

    @pytest.mark.parametrize("slot,value,message", [
        ("ring", Causal(), "slot ring wants a ring block, not mask/causal"),
        ("ring", None, "slot ring wants a ring block, not None"),
        ("ring", MbarrierRing, "slot ring wants a ring block, not <class"),
        ("mask", Causal(), "slot mask wants a tuple of mask blocks"),
        ("mask", [Causal()], "slot mask wants a tuple of mask blocks"),
        ("mask", (Causal(), Causal()), "slot mask holds mask/causal twice"),
        ("score", (SoftCap(cap=1.0), SoftCap(cap=2.0)), "slot score holds score/soft_cap twice"),
        ("mask", (Causal(), SoftCap(cap=3.0)), "slot mask wants a mask block, not score/soft_cap"),
    ])  # fmt: skip
    def test_wrong_filling(self, slot, value, message):
        with pytest.raises(SpecError) as caught:
            DecodeMainloop(**{slot: value})
        assert message in str(caught.value) and caught.value.key == slot


@pytest.mark.parametrize("make,key,allowed", [
    (lambda: MbarrierRing(stages=0), "stages", "an integer from 1 to 16"),
    (lambda: MbarrierRing(stages=3.0), "stages", "an integer from 1 to 16"),
    (lambda: SlidingWindow(window=0), "window", "an integer from 1 to"),
    (lambda: SoftCap(cap=0.0), "cap", "a finite number above 0"),
    (lambda: SoftCap(cap=float("nan")), "cap", "a finite number above 0"),
    (lambda: SoftCap(cap=True), "cap", "a finite number above 0"),
    (lambda: StoreEpilogue(lse=True), "lse", "none, e, 2"),
    (lambda: StoreEpilogue(lse="10"), "lse", "none, e, 2"),
    (lambda: DecodeMainloop(ctas_per_sm=5), "ctas_per_sm", "an integer from 1 to 4"),
])  # fmt: skip
def test_options_are_validated_when_the_spec_is_made(make, key, allowed):
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.key == key and allowed in str(caught.value) and caught.value.reason


def test_specs_are_ordinary_attrs_classes():
    ring = MbarrierRing(stages=2)
    assert evolve(ring, stages=5) == MbarrierRing(stages=5)
    assert hash(ring) == hash(MbarrierRing(stages=2))
    with pytest.raises(SpecError):
        evolve(ring, stages=99)


def test_a_slot_cannot_hide_a_method_of_the_mainloop():
    with pytest.raises(SpecError) as caught:

        @frozen(kw_only=True)
        class Hiding(Mainloop):
            parts: tuple = slot("mask", many=True)

    assert "Hiding has a field called parts, which is a method of every mainloop" in str(caught.value)
