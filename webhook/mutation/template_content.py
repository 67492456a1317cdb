"""Compare what claim templates request, independent of author and of defaults of the API server. Pure."""

from collections.abc import Mapping
from typing import Any

from gpushare.quantity import exact_value


def content(template: Mapping[str, Any]) -> int:
    """Return a number for what a template asks for, the same for what we write and what the API server stores.

    The API server fills in what was left out and writes amounts in its own way. Of the fields that we never write, only
    those count that would make the claim another one.
    """
    devices = ((template.get("spec") or {}).get("spec") or {}).get("devices") or {}
    requests = tuple(map(_request, devices.get("requests") or ()))
    kept = ("requests", "matchAttribute", "distinctAttribute")
    constraints = tuple(repr([each.get(key) for key in kept]) for each in devices.get("constraints") or ())
    return hash((requests, constraints))


def _request(request: Mapping[str, Any]) -> tuple[object, ...]:
    alternatives = tuple((str(each.get("name")), *_wanted(each)) for each in request.get("firstAvailable") or ())
    return (str(request.get("name")), *_wanted(request.get("exactly") or {}), alternatives)


def _wanted(exactly: Mapping[str, Any]) -> tuple[str, ...]:
    amounts = (exactly.get("capacity") or {}).get("requests") or {}
    selectors = [(each.get("cel") or {}).get("expression") for each in exactly.get("selectors") or ()]
    alike = {key: exact_value(value) for key, value in sorted(amounts.items())}
    count = (exactly.get("allocationMode", "ExactCount"), exactly.get("count", 1), exactly.get("adminAccess") or False)
    return (str(exactly.get("deviceClassName")), repr(alike), repr(selectors), repr(count))
