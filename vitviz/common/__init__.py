"""What every part uses and what knows no part: language, files, tables, pictures, the hub."""

#: The shipped model that opens first, and that the lessons show.
DEFAULT_MODEL = "vitviz_things200"
