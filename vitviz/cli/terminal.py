"""What every command writes to the terminal alike."""

import sys

CLEAR = "\r\x1b[K"  # to the beginning of a terminal's line, and wipe it


def refused(error: object) -> int:
    """Print why a command is refused; returns its exit code."""
    print(error, file=sys.stderr)
    return 2
