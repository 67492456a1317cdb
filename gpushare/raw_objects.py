"""Read raw objects of the API server: what is missing or of another shape counts as empty. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]


def mapping(value: Object, key: str) -> Object:
    """Return the object at a key."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def objects(value: Object, key: str) -> list[Object]:
    """Return the objects of the list at a key."""
    found = value.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def text(value: Object, key: str) -> str:
    """Return the text at a key."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


def moment(stamp: object) -> datetime | None:
    """Read a time of the API server, in UTC where it names no zone; ``None`` where it is not a time."""
    try:
        found = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
