"""Preludes: what is reached is copied, with its comments and the imports that it needs, in file order; nothing else is."""

import textwrap

import pytest

from tle_attn.codegen import prelude as module
from tle_attn.codegen.prelude import TARGETS, defined_names, prelude
from tle_attn.dialect.table import NAMES

DIALECT = '''
"""A dialect."""

import os
import first, second
from third import a as b, c
from fourth import *

plain = first.plain
typed: int = 3
# a comment above
# of two lines
with_comment = plain

ignored = second.ignored


def helper(x):
    return b(x)


@decorated
def operation(x):
    # inside
    return helper(x) + typed


class Kind:
    value = c


os.environ.get("never copied")
'''


@pytest.fixture
def dialect(tmp_path, monkeypatch):
    (tmp_path / "cpu.py").write_text(DIALECT)
    monkeypatch.setattr(module, "DIALECT", tmp_path)
    module._parsed.cache_clear()
    yield tmp_path
    module._parsed.cache_clear()


def test_defined_names(dialect):
    assert defined_names("cpu") == {"plain", "typed", "with_comment", "ignored", "helper", "operation", "Kind"}


def test_what_is_reached_is_copied(dialect):
    assert prelude("cpu", {"operation", "with_comment"}) == textwrap.dedent("""
        import first
        from third import a as b

        plain = first.plain
        typed: int = 3
        # a comment above
        # of two lines
        with_comment = plain


        def helper(x):
            return b(x)


        @decorated
        def operation(x):
            # inside
            return helper(x) + typed
    """).strip("\n")


def test_names_that_are_not_there_copy_nothing(dialect):
    assert prelude("cpu", {"nothing"}).strip() == ""
    assert prelude("cpu", {"Kind"}) == "from third import c\n\nclass Kind:\n    value = c"


def test_microkernel_files_join_the_prelude(dialect, tmp_path):
    micro = tmp_path / "micro.cpu.py"
    micro.write_text('"""A microkernel."""\nimport fifth\n\n\ndef publish(x):\n    return fifth.f(helper(x))\n')
    text = prelude("cpu", {"publish"}, (micro,))
    assert text.startswith("import fifth\nfrom third import a as b\n\ndef helper(x):") and "def publish(x):" in text
    assert "publish" in defined_names("cpu", (micro,)) and "publish" not in defined_names("cpu")


def test_imports_are_one_line_a_module_the_standard_librarys_first(dialect, tmp_path):
    micro = tmp_path / "micro.cpu.py"
    micro.write_text("from third import c, d\nimport math\nfrom json import dumps, loads\n\n\ndef publish(x):\n    return helper(c, d, math, dumps, first)\n")
    text = prelude("cpu", {"publish"}, (micro,))
    assert text.startswith("import math\nfrom json import dumps\n\nimport first\nfrom third import a as b, c, d\n\ndef helper")


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_defines_the_whole_dialect(target):
    assert NAMES <= defined_names(target)
