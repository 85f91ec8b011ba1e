"""Composition errors: a missing function, ports that do not fit, two providers; the message names the block that would fit."""

import pytest
from attrs import evolve, frozen

from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.v_operand.direct import DirectV
from tle_attn.errors import PortError, SpecError
from tle_attn.spec import DType, Function, Kernel, Place, Port, Problem

S = Port("s", DType.F32, ("key", "query"), (64, 8), layout="mma")
M = Port("m", DType.F32, ("query",), (8,))


def fails(make, *parts: str) -> PortError:
    with pytest.raises(PortError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return caught.value


def test_what_fits(make_kernel):
    typed = Function("step", (S, M), (M,))
    for have in (
        typed,
        Function("step"),
        Function("step", (S, M)),
        Function("step", (), (M,)),
        Function("step", (evolve(S, name="scores", layout="any"), M), (M,)),
    ):
        make_kernel({"provides": (have,)}, {"requires": (typed,)})
    make_kernel({"provides": (typed,)}, {"requires": (Function("step"),)})


def test_nobody_provides_it(make_kernel):
    error = fails(
        lambda: make_kernel({"requires": (Function("step", (S,)),)}, file="a.toml"),
        "a.toml: pieces[0]: pieces[0] calls step, which no block provides", "its device text calls it, with (s: f32[key 64, query 8] register mma)",
    )  # fmt: skip
    assert error.key == "pieces[0]"


@pytest.mark.parametrize("have,parts", [
    (Function("step", (evolve(S, dtype=DType.BF16), M), (M,)), ("port s has dtype bf16 where f32 is wanted",)),
    (Function("step", (S, evolve(M, axes=("key",))), (M,)), ("port m has axes ('key',) where ('query',) is wanted",)),
    (Function("step", (S, M), (evolve(M, place=Place.SHARED),)), ("port m has place shared where register is wanted", "wants m: f32[query 8] register;")),
    (Function("step", (S,), (M,)), ("1 inputs where 2 are wanted", "this block has s: f32[key 64, query 8] register mma")),
    (Function("step", (S, M, M), (M,)), ("3 inputs where 2 are wanted",)),
    (Function("step", (S, M), (S, M)), ("2 outputs where 1 are wanted",)),
])  # fmt: skip
def test_ports_that_do_not_fit(make_kernel, have, parts):
    wanted = Function("step", (S, M), (M,))
    error = fails(lambda: make_kernel({"provides": (have,)}, {"requires": (wanted,)}), "step of this block does not fit pieces[1]: ", *parts)
    assert error.key == "pieces[0]", "the key of the block that does not fit"


def test_two_providers(make_kernel):
    fails(lambda: make_kernel({"provides": (Function("step"),)}, {"provides": (Function("step"),)}), "pieces[1]: both pieces[0] and pieces[1] provide step")


def test_the_message_names_the_block_of_the_library_that_fits():
    @frozen(kw_only=True)
    class Transposed(DirectV):
        """A V operand that wants its tile the other way round."""

        NAME = ""

        def provides(self, problem):
            return tuple(
                evolve(f, inputs=tuple(evolve(p, axes=p.axes[::-1], shape=p.shape[::-1]) if p.name == "v_tile" else p for p in f.inputs))
                for f in super().provides(problem)
            )

    mainloop = DecodeMainloop(v_operand=Transposed())
    fails(
        lambda: Kernel(name="test", problem=Problem(), mainloop=mainloop),
        "of this block does not fit mainloop: port v_tile has axes",
        "allowed  v_operand/direct",
    )


def test_a_block_that_cannot_serve_the_problem_names_its_key(make_kernel):
    with pytest.raises(SpecError) as caught:
        make_kernel({}, {"check": SpecError("no", key="dtype")}, file="a.toml")
    assert str(caught.value) == "a.toml: pieces[1].dtype: no"
