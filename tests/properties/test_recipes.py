"""Random recipes: composing gives a kernel or a SpecError, a kernel generates, agrees with the oracle in emulation, and compiles for sm_90a."""

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.properties.strategies import lengths, pairs, prefill_recipes, recipes
from tle_attn.codegen import generate
from tle_attn.errors import SpecError
from tle_attn.random_problems import prefill_problem_for, problem_for
from tle_attn.runtime.executors import compile_kernel
from tle_attn.spec import Kernel
from tle_attn.verify import run_one, tolerance


def settled(examples: int) -> settings:
    """The same examples in every run; those that do not compose do not count as slow."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=checks, phases=[Phase.generate])


def composed(recipe) -> Kernel:
    try:
        return recipe.kernel()
    except SpecError as error:
        assert error.message and str(error)
        assume(False)
        raise


@settled(60)
@given(st.one_of(recipes(), prefill_recipes()))
def test_a_recipe_is_refused_with_a_reason_or_generates(recipe):
    kernel = composed(recipe)
    texts = {generate(kernel, target).text.split("# ==== kernel text")[1] for target in ("cpu", "gluon", "tle")}
    assert len(texts) == 1


@settled(10)
@given(recipes(), lengths)
def test_emulation_agrees_with_the_oracle(recipe, kv_lens):
    kernel = composed(recipe)
    _, failure = run_one(kernel, "cpu", problem_for(kernel, kv_lens, kv_heads=2, seed=len(kv_lens)), tolerance(kernel)[0])
    assert failure is None, failure


@settled(12)
@given(prefill_recipes(), pairs)
def test_emulation_of_prefill_agrees_with_the_oracle(recipe, lengths):
    kernel = composed(recipe)
    _, failure = run_one(kernel, "cpu", prefill_problem_for(kernel, lengths, kv_heads=1, padding_rows=1, seed=len(lengths)), tolerance(kernel)[0])
    assert failure is None, failure


@pytest.mark.filterwarnings("ignore")
@settled(3)
@given(st.one_of(recipes(), prefill_recipes()))
def test_generated_code_compiles(recipe):
    kernel = composed(recipe)
    facts = compile_kernel(kernel, kernel.mainloop.ENTRIES[0]).facts
    assert facts.registers <= 255 and facts.shared_bytes <= 232_448
