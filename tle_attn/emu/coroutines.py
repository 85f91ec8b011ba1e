"""Roles as coroutines that are resumed one at a time.

greenlet switches stacks in about a microsecond and needs no cooperation from the kernel text, which is ordinary Python
(generators would put `yield from` into every function).  Where it is not installed, one thread per role passes a baton: the same
schedules, 1.5 to 2.5 times slower.  `pip install tle-attn[emu]` brings greenlet.
"""

import threading
from collections.abc import Callable

try:
    from greenlet import getcurrent, greenlet
except ImportError:  # the threads below serve as well
    greenlet = None


class Greenlets:
    """Coroutines on greenlets."""

    def __init__(self):
        self.main = getcurrent()

    def start(self, body: Callable[[], None]) -> "greenlet":
        return greenlet(body, self.main)

    def resume(self, coroutine: "greenlet") -> None:
        coroutine.switch()

    def pause(self, coroutine: "greenlet") -> None:
        self.main.switch()

    def stop(self, coroutine: "greenlet") -> None:
        coroutine.throw()  # GreenletExit ends the suspended role


class _Stopped(BaseException):
    """Ends the thread of a role that is given up."""


class Baton:
    """A role's thread and the semaphore that lets it run."""

    def __init__(self, body: Callable[[], None], main: threading.Semaphore):
        self.go = threading.Semaphore(0)
        self.stopped = False

        def run() -> None:
            self.go.acquire()
            if not self.stopped:
                body()
            main.release()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()


class Threads:
    """Coroutines on threads, of which one runs at a time."""

    def __init__(self):
        self.main = threading.Semaphore(0)

    def start(self, body: Callable[[], None]) -> Baton:
        return Baton(body, self.main)

    def resume(self, coroutine: Baton) -> None:
        coroutine.go.release()
        self.main.acquire()

    def pause(self, coroutine: Baton) -> None:
        self.main.release()
        coroutine.go.acquire()
        if coroutine.stopped:
            raise _Stopped

    def stop(self, coroutine: Baton) -> None:
        coroutine.stopped = True
        self.resume(coroutine)
        coroutine.thread.join()


def backend(name: str | None = None) -> Greenlets | Threads:
    """`greenlet`, `thread`, or None for the faster one that is there."""
    if name not in (None, "greenlet", "thread"):
        raise ValueError(f"coroutine backend {name!r}: 'greenlet' or 'thread'")
    if name == "greenlet" and greenlet is None:
        raise ModuleNotFoundError("greenlet is not installed: pip install tle-attn[emu]")
    return Threads() if name == "thread" or greenlet is None else Greenlets()
