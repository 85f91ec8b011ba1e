"""Kernels made of blocks that exist for one test; they have no device text, only what they say about themselves."""

from typing import Any

import pytest
from attrs import frozen

from tle_attn.spec import Block, Kernel, Mainloop, Problem, Resources, Role, slot

ONE_ROLE = Resources(roles=(Role("main", "kernel", 4, 0),))


@frozen(kw_only=True)
class Piece(Block):
    """A block that says what it is told to say."""

    KIND = "piece"

    says: dict[str, Any]

    def check(self, problem):
        if "check" in self.says:
            raise self.says["check"]

    def provides(self, problem):
        return self.says.get("provides", ())

    def requires(self, problem):
        return self.says.get("requires", ())


@frozen(kw_only=True)
class Loop(Mainloop):
    """A mainloop with these resources."""

    KIND, NAME = "mainloop", ""

    takes: Resources = ONE_ROLE
    pieces: tuple = slot("piece", many=True)

    def resources(self, problem):
        return self.takes


@pytest.fixture
def make_kernel():
    def make(*pieces: dict[str, Any], takes: Resources = ONE_ROLE, file: str | None = None) -> Kernel:
        return Kernel(name="test", problem=Problem(), mainloop=Loop(takes=takes, pieces=tuple(Piece(says=p) for p in pieces)), file=file)

    return make
