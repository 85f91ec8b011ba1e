"""Expressions: what is refused and why; what a translation looks like.  Their values are compared in tests/components/scores and masks."""

import pytest

from tle_attn.codegen.expression import Expression, text_of_function
from tle_attn.errors import SpecError
from tle_attn.expressions import INPUTS


def translated(text, **numbers):
    lines, result, _ = Expression(text, INPUTS, numbers).translate()
    return "; ".join([*lines, result.text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the last line is no expression"),
        ("s +", "not an expression: invalid syntax"),
        ("x = s", "the last line is no expression"),
        ("s + bias", "nothing is called bias"),
        ("s + seq", "nothing is called seq"),
        ("s.sum()", r"`s.sum` is no function of an expression"),
        ("sum(s)", "`sum` is no function"),
        ("exp", "exp is a function"),
        ("s[0]", r"`s\[0\]` is not elementwise"),
        ("[s]", r"`\[s\]` is not elementwise"),
        ("(lambda: s)()", "is no function of an expression"),
        ("s @ s", "`s @ s` has no meaning on the device"),
        ("s ** 2", r"`s \*\* 2` has no meaning on the device"),
        ("s in key", "`s in key` has no meaning on the device"),
        ("s / 0", "`s / 0` divides by zero"),
        ("s + head // 0", "`head // 0` divides by zero"),
        ("s + 1 % 0", "`1 % 0` divides by zero"),
        ("zero = 0.0\ns / zero", "`s / zero` divides by zero"),
        ("s // 2", "`s` is a float where `//` wants an integer"),
        ("s and key", "`s` is a float where `and` wants a boolean"),
        ("s + (key > 1)", r"`key > 1` is a boolean where `\+` wants a number"),
        ("where(s, 1, 2)", "`s` is a float where where wants a boolean"),
        ("where(s > 1, 2)", "where takes 3 values"),
        ("max(*s)", "max takes 2 values"),
        ("s + True", "True is True"),
        ("s + 1e999", "1e309 is inf|is inf"),
        ("s + 3000000000", "3000000000 is 3000000000"),
        ("s + 'a'", "'a' is 'a'"),
        ("for i in s:\n    pass\ns", "`for i in s:` is not elementwise"),
        ("s = 1\ns", "'s' cannot name a value"),
        ("exp2 = 1\ns", "'exp2' cannot name a value"),
        ("A = 1\ns", "'A' cannot name a value"),
        ("logit = 1\ns", "'logit' cannot name a value"),
        ("a = 1\na = 2\ns", "a is given a second value"),
        ("a = b = s\na", "is not elementwise"),
        ("__import__('os')", "is no function of an expression"),
    ],
)
def test_refused(text, message):
    with pytest.raises(SpecError, match=message) as caught:
        translated(text)
    assert caught.value.key == "value"


@pytest.mark.parametrize("numbers", [{"load": 1}, {"key": 1}, {"a b": 1}, {"x": float("nan")}, {"x": "1"}, {"x": True}])
def test_refused_numbers(numbers):
    with pytest.raises(SpecError):
        translated("s", **numbers)


def test_translation():
    assert translated("s - rate * (query - key)", rate=1) == "(logit - (1 * (query - key)).to(F32))"
    assert translated("s + 2 * 3 + half", half=0.5) == "((logit + 6.0) + 0.5)"
    assert translated("0 <= key < 4 or not query == 1") == "(((0 <= key) & (key < 4)) | (((query == 1)) == 0))"
    assert translated("d = query - key\nn = 7\ns / d if d > n else s") == "d = (query - key); where((d > 7), fdiv(logit, d.to(F32)), logit)"


def test_functions_that_cannot_be_read():
    for function, message in ((len, "cannot be read"), (lambda s: s, "no function defined with `def`")):
        with pytest.raises(SpecError, match=message):
            text_of_function(function)

    def no_result(s):
        s = s + 1

    with pytest.raises(SpecError, match="no_result does not end with `return`"):
        text_of_function(no_result)
