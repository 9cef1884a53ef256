"""`python -m vitviz.cli` is the `vitviz` command."""

import sys

from . import main

sys.exit(main())
