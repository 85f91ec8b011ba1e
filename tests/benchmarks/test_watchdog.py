import subprocess
import sys
import time

import pytest

from benchmarks.watchdog import HANG_STATUS, watch


def test_a_hang_ends_the_process_and_names_the_case():
    code = "import time; from benchmarks.watchdog import watch\nwith watch('the case', 0.2): time.sleep(60)"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == HANG_STATUS
    assert "HANG: the case" in done.stderr
    assert time.monotonic() - start < 10


def test_a_block_that_ends_in_time():
    with watch("quick", 0.1):
        pass
    time.sleep(0.2)  # and nothing happens afterwards


def test_an_exception_passes_through():
    with pytest.raises(KeyError), watch("raises", 5.0):
        raise KeyError("x")
