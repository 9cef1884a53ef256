"""End at once on Ctrl-C while the command is still being imported, without a traceback.

This module is imported first. Libraries that are being imported answer KeyboardInterrupt with
errors of their own, and until the command itself runs there is nothing to save.
"""

import _signal  # type: ignore[import-not-found]  # signal itself imports a dozen modules
import os
import sys

STOPPED = 130  # the exit code after Ctrl-C


def leave(*_: object) -> None:
    os.write(2, b"\nStopped.\n")
    os._exit(STOPPED)


def leave_on_interrupt() -> None:
    """Let Ctrl-C end this process, unless the calling program handles it itself."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, leave)


def allow_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, as there is something to save or undo."""
    if _signal.getsignal(_signal.SIGINT) is leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


if sys.argv and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]).startswith("vitviz")):
    leave_on_interrupt()  # this process is the command
