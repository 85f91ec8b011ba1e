"""Problem: what is allowed, what is refused and how, and the padding of query rows."""

import pytest

from tle_attn.errors import SpecError, written
from tle_attn.spec import DType, Problem


@pytest.mark.parametrize("key,value,allowed", [
    ("page", 48, "16, 32, 64, 128"),
    ("page", 64.0, "16, 32, 64, 128"),
    ("page", "64", "16, 32, 64, 128"),
    ("head_dim", 80, "64, 96, 128, 192, 256"),
    ("value_dim", 32, "64, 96, 128, 192, 256"),
    ("dtype", DType.F32, "bf16, fp8"),
    ("group", 0, "an integer from 1 up"),
    ("group", True, "an integer from 1 up"),
    ("group", 2.0, "an integer from 1 up"),
    ("query_tokens", 0, "an integer from 1 to 64"),
    ("query_tokens", 65, "an integer from 1 to 64"),
])  # fmt: skip
def test_refused_values(key, value, allowed):
    with pytest.raises(SpecError) as caught:
        Problem(**{key: value})
    error = caught.value
    assert (error.key, error.value, error.reason is not None) == (key, value, True)
    assert f"  value    {written(value)}" in str(error) and f"  allowed  {allowed}" in str(error) and "  because  " in str(error)


@pytest.mark.parametrize("tokens,group,columns", [(1, 1, 8), (1, 8, 8), (3, 3, 16), (2, 8, 16), (1, 17, 32), (5, 8, 64), (1, 64, 64)])
def test_columns_are_the_next_power_of_two_from_8(tokens, group, columns):
    assert Problem(query_tokens=tokens, group=group).columns == columns


def test_frozen_and_hashable():
    problem = Problem()
    with pytest.raises(AttributeError):
        problem.page = 16
    assert hash(problem) == hash(Problem()) and problem == Problem(dtype=DType.BF16)
    with pytest.raises(TypeError):
        Problem(DType.BF16)


@pytest.mark.parametrize("head_dim,value_dim,tiles", [(128, None, (128, 128)), (96, None, (128, 128)), (192, 128, (256, 128)), (64, 96, (64, 128)), (256, None, (256, 256))])
def test_tiles_are_powers_of_two_wide(head_dim, value_dim, tiles):
    problem = Problem(head_dim=head_dim, value_dim=value_dim)
    assert (problem.tile_dim, problem.value_tile_dim) == tiles and problem.v_dim == (value_dim or head_dim)
    assert sum(problem.head_tiles) == (192 if head_dim == 192 else tiles[0])
    assert problem.prefill_keys == (64 if value_dim is None and head_dim == 256 else 128)
