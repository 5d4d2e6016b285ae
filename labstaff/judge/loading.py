"""Loads a submission."""

from __future__ import annotations

import linecache
import types


class NotRun(Exception):
    """A text that cannot be run: the message says why, to follow the file's name."""


def load_answer(module: types.ModuleType, file: str, text: str) -> None:
    """Run `text`, the content of `file`, in the namespace of `module`.

    Raises:
        NotRun: it is not Python.
    """
    try:
        code = compile(text.removeprefix("\ufeff"), file, "exec", dont_inherit=True)
    except SyntaxError as error:
        line_text = (error.text or "").strip()[:200]
        said = f"has a syntax error in line {error.lineno or 0}: {error.msg}"
        raise NotRun(said + (f": {line_text}" if line_text else "")) from None
    except ValueError as error:
        raise NotRun(f"is no text of Python: {error}") from None
    except (RecursionError, MemoryError):
        raise NotRun("is nested too deep to be read") from None
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # Triton reads the text of kernels
    exec(code, module.__dict__)
