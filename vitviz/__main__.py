"""`python -m vitviz` is the `vitviz` command."""

import sys

from .cli import main

sys.exit(main())
