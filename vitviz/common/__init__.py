"""Tools that every part uses: language, files, tables, pictures, the hub."""

from collections.abc import Callable

#: The shipped model that opens first, and that the lessons show.
DEFAULT_MODEL = "vitviz_things200"
#: The same with 4 x 4 patches, so that all of its attention can be read as numbers.
SMALL_MODEL = "vitviz_things200_p16"

#: Called as progress(done, of) before or after each step. An error that it raises ends the work.
Progress = Callable[[int, int], object]
