"""The file in a course's folder with the secret from which hidden inputs are drawn."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from labstaff.grader.results import write_whole

FILE = "grading.json"


class CourseState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content: `secret`, 256 bits that no student has seen."""

    secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class DamagedState(Exception):
    """The file is there and cannot be read; the message says what to do."""


def course_secret(course: Path) -> bytes:
    """The secret of the course in the folder `course`; one is drawn when it has none.

    Raises:
        DamagedState: the file is not what it should be. Another secret would change results that were handed out.
    """
    path = course / FILE
    try:
        return bytes.fromhex(msgspec.json.decode(path.read_bytes(), type=CourseState).secret)
    except FileNotFoundError:
        secret = secrets.token_hex(32)
        course.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(CourseState(secret)))
        return bytes.fromhex(secret)
    except ValueError as error:
        raise DamagedState(
            f"{path} is damaged ({error}): restore it, or remove it to have everything graded again with other inputs"
        ) from None


def seed_of(secret: bytes, key: str) -> int:
    """The seed of the random inputs for the submission with this key: what one learns is worth nothing for the next."""
    return int.from_bytes(hmac.digest(secret, key.encode(), "sha256"))
