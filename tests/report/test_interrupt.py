"""An interrupted run of a family leaves no process behind."""

import os
import signal
import subprocess
import sys

COMMAND = "import sys; from tle_attn.cli import main; sys.exit(main(['hy3', '--out', sys.argv[1]]))"


def test_an_interrupt_ends_command_and_workers(tmp_path):
    """The signal goes to the parent alone, as `kill` sends it: what its workers still have to do is minutes of work."""
    with subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True) as command:
        try:
            assert "verified in" in command.stderr.readline(), "progress of the first kernel"
            command.send_signal(signal.SIGINT)
            # the end of the pipe is there only when no worker holds it any more
            command.communicate(timeout=30)
            assert command.returncode not in (None, 0)
        finally:
            if command.poll() is None:
                os.killpg(command.pid, signal.SIGKILL)
