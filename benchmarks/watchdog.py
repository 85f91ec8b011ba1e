"""A kernel that hangs ends the process, with a message that names the case."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: Exit status of a process that was ended because the GPU did not answer.
HANG_STATUS = 3


@contextmanager
def watch(label: str, seconds: float = 12.0, stream: TextIO | None = None) -> Iterator[None]:
    """End the process with status 3 if the block takes longer than `seconds`; the message goes to `stream`, by default standard error.

    A kernel that waits for ever cannot be interrupted: only the end of its process frees the GPU.
    """
    done = threading.Event()

    def bark() -> None:
        if not done.wait(seconds):
            print(f"HANG: {label}: no answer for {seconds:g} s; this process ends", file=stream or sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(HANG_STATUS)

    dog = threading.Thread(target=bark, daemon=True)
    dog.start()
    try:
        yield
    finally:
        done.set()
        dog.join()
