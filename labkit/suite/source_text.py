"""Decodes a student's file: as Python reads it, and UTF-16, which PowerShell's `>` writes."""

from __future__ import annotations

import codecs
import io
import tokenize
from pathlib import Path


def decode_source(source: bytes) -> tuple[str, str]:
    """The text, and its encoding: by a byte-order mark or a coding line (PEP 263), otherwise UTF-8.

    Raises:
        UnicodeDecodeError: the bytes are no text in that encoding.
        SyntaxError: the coding line names no encoding of text, or contradicts the byte-order mark.
    """
    if source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return source.decode("utf-16"), "utf-16"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError:
        source.decode()  # says at which byte, where the file is no UTF-8 and has no coding line
        raise
    try:
        return source.decode(encoding), encoding
    except LookupError as error:
        raise SyntaxError(str(error)) from None


def read_source(file: Path) -> str:
    """The text of `file`.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError, SyntaxError: as `decode_source`.
    """
    return decode_source(file.read_bytes())[0]
