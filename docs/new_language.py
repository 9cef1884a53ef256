"""Begin a translation of the app.

    python docs/new_language.py CODE

It writes vitviz/text/CODE: the English pages, and catalogues of all strings without translations.
"""

import argparse
import shutil
from pathlib import Path

from babel import Locale
from babel.messages import Catalog
from babel.messages.pofile import read_po, write_po

TEXT = Path(__file__).parents[1] / "vitviz" / "text"
_COMPLETE = TEXT / "ko"  # the tests compare its strings with those of the code


def begin(code: str, text: Path = TEXT) -> Path:
    """Write the folder of a new language and return it.

    Raises
    ------
    FileExistsError
        When the language has a folder.
    babel.UnknownLocaleError
        When there is no language with this code.
    """
    locale, empty = Locale.parse(code), {}
    for file in sorted(_COMPLETE.glob("*.po")):
        with file.open("rb") as opened:
            strings = [(each.id, each.flags) for each in read_po(opened) if each.id]
        catalogue = Catalog(
            locale, project="vitviz", header_comment=f"# {locale.english_name}.", fuzzy=False
        )
        for english, flags in strings:
            catalogue.add(english, flags=flags)
        empty[file.name] = catalogue
    folder = text / code
    folder.mkdir(parents=True)
    for page in sorted((TEXT / "en").glob("*.md")):
        shutil.copy(page, folder)
    for name, catalogue in empty.items():
        with (folder / name).open("wb") as opened:
            write_po(opened, catalogue, width=0)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("code", help="the language, such as fr")
    print(begin(parser.parse_args().code))
