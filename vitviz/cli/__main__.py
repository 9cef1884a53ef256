"""Run the command line as `python -m vitviz.cli`, as `python -m vitviz` does."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
