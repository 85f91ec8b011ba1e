"""The command `tle-attn`.  The logic is in `tle_attn.verify` and `tle_attn.report`; this only reads arguments and prints."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

#: exit statuses; 2 is also what wrong usage gives
OK, WRONG, REFUSED, UNAVAILABLE = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 1 a result is wrong, 2 the input was refused, 3 it cannot run here."""
    from ..errors import TargetUnavailable, TleAttnError
    from .app import app

    try:
        with warnings.catch_warnings():
            # what a reader of the command's output can do something about, without the line of ours that found it
            warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
            app(args=arguments, prog_name="tle-attn")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK
    except TargetUnavailable as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    except TleAttnError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"{error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return REFUSED
    return OK
