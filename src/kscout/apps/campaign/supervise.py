"""Run a command that must end with its caller. Only the standard library is used.

    python supervise.py DESCRIPTOR COMMAND...

Standard input is a pipe that the caller holds open: when it closes, because the caller ended for
any reason, the command and all its child processes are killed. If this process itself is killed,
the system kills the command. The descriptor, the lock of the run's folder, is inherited, so that
the lock is held as long as any part of the command lives.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, command: list[str]) -> int:
    """Run the command to its end and return its exit code, 128 + signal if it was killed."""
    # Loaded before the fork, because no library should be opened between fork and exec.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def die_with_parent() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[descriptor],
        preexec_fn=die_with_parent,
    )
    threading.Thread(target=_kill_at_end_of_input, args=(child.pid,), daemon=True).start()
    code = child.wait()
    _kill_group(child.pid)
    return code if code >= 0 else 128 - code


def _kill_at_end_of_input(group: int) -> None:
    while os.read(0, 1):
        pass
    _kill_group(group)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
