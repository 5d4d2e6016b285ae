"""Reads CSV files as spreadsheets save them: with commas, semicolons or tabs, in UTF-8 or UTF-16."""

from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path

DELIMITERS = ",;\t"


class SpreadsheetError(ValueError):
    """A file that cannot be read as a table; the message names it and says why."""


def read_rows(file: Path) -> list[list[str]]:
    """The rows of `file`, the one with the columns' names first; the delimiter is what that row has most.

    Raises:
        SpreadsheetError: there is no such file, or it is no CSV file in UTF-8, or in UTF-16 with a byte-order mark.
    """
    try:
        content = file.read_bytes()
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
        delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except OSError as error:
        raise SpreadsheetError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeError as error:
        raise SpreadsheetError(f"{file}: cannot be read: save it as “CSV UTF-8”: {error}") from None
    except csv.Error as error:
        raise SpreadsheetError(f"{file}: cannot be read as CSV: {error}") from None
