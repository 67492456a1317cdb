"""Which rights the pods of a control plane used, from the API server's audit log.

Every request of a pod carries the pod's name, which is in its token
(https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/). Requests of tests that act as a
service account carry none and do not count.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.asked_rights import Right

VARIABLE: Final = "GPU_SHARE_USED_RIGHTS"
"""Names a folder; without it nothing is kept."""
LOG: Final = Path("logs", "audit.log")
POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:gpu-share-system"]}, {"level": "None"}],
}
ACCOUNT: Final = "system:serviceaccount:gpu-share-system:"
POD: Final = "authentication.kubernetes.io/pod-name"
DECISION: Final = "authorization.k8s.io/decision"


def folder(here: Path) -> Path:
    """Make an empty folder for the rights that are used by clusters of this process and those that it starts."""
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    os.environ[VARIABLE] = str(here)
    return here


def keep(root: Path) -> None:
    """Write the rights that were used on the control plane in ``root`` into a new file of the folder."""
    where, log = os.environ.get(VARIABLE), root / LOG
    if where and log.exists():
        with log.open() as lines, tempfile.NamedTemporaryFile("w", dir=where, suffix=".json", delete=False) as file:
            json.dump(sorted({(account, *row(right)) for account, right in used(lines)}), file)


def kept(where: Path) -> set[tuple[str, Right]]:
    """Read all files of the folder: pairs of a service account's name and a right that it used."""
    rows = (each for file in where.glob("*.json") for each in json.loads(file.read_text()))
    return {(account, Right(*right)) for account, *right in rows}


def used(lines: Iterable[str]) -> Iterator[tuple[str, Right]]:
    """Yield (account, right) of each request of a pod that the API server allowed."""
    for event in map(json.loads, lines):
        user, asked = event["user"], event.get("objectRef", {})
        if asked and POD in user.get("extra", {}) and event.get("annotations", {}).get(DECISION) == "allow":
            resource = "/".join(asked[each] for each in ("resource", "subresource") if each in asked)
            yield (
                user["username"].removeprefix(ACCOUNT),
                Right(event["verb"], asked.get("apiGroup", ""), resource, asked.get("name", "")),
            )


def row(right: Right) -> tuple[str, str, str, str]:
    """The fields of a right in order."""
    return right.verb, right.group, right.resource, right.name
