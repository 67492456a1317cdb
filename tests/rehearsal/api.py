"""Asks the API server as an administrator, over HTTP alone: the checker uses no client of the product."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.rehearsal.state import Object

SECONDS: Final = 15.0
CORE: Final = "/api/v1"
RESOURCE: Final = "/apis/resource.k8s.io/v1"
CREATED: Final = 201
FEWEST_WRONG: Final = 400
"""Status from which on an answer is an error."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API server, its CA and an administrator's token."""

    url: str
    token: str
    trust: ssl.SSLContext

    @classmethod
    def of(cls, kubeconfig: Path) -> Self:
        """Take address and token of a kubeconfig with one cluster and one user."""
        read = yaml.safe_load(kubeconfig.read_text())
        cluster, user = read["clusters"][0]["cluster"], read["users"][0]["user"]
        trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        return cls(cluster["server"], user["token"], trust)

    def get(self, where: str) -> Object:
        """Return an object or a list; raises ``LookupError`` where there is none or nobody answers."""
        status, found = self._ask("GET", where)
        if status >= FEWEST_WRONG:
            raise LookupError(f"{where}: {found.get('message', status)}")
        return found

    def items(self, where: str) -> list[Object]:
        """Return the objects of a list; raises ``LookupError`` as above."""
        found: list[Object] = self.get(where)["items"]
        return found

    def post(self, where: str, body: Object) -> tuple[int, Object]:
        """Return status and answer; raises ``LookupError`` where nobody answers."""
        return self._ask("POST", where, json.dumps(body).encode())

    def delete(self, where: str) -> int:
        """Delete an object, or all that a selector chooses; returns the status as above."""
        return self._ask("DELETE", where)[0]

    def _ask(self, verb: str, where: str, body: bytes | None = None) -> tuple[int, Object]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + where, data=body, headers=headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=self.trust) as answer:
                return answer.status, _object(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _object(error.read())
        except OSError as error:
            raise LookupError(f"the API server does not answer: {error}") from error


def _object(text: bytes) -> Object:
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise LookupError(f"the API server answers nonsense: {text[:60]!r}") from error
    return found if isinstance(found, dict) else {}
