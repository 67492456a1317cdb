"""Rights that the chart gives to its service accounts and no pod used in a whole ``make e2e``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.support.asked_rights import Right, given

Grant = tuple[str, Right]
"""A service account's name and one right of its; a right without a name is for all objects of that kind."""

NOT_LOGGED: Final = {
    ("gpu-share.io", "claimtemplates"): "a policy asks for it when resourceclaimtemplates are written",
    ("resource.k8s.io", "resourceclaims/driver"): "the API server asks for it when resourceclaims/status is written",
}
"""Rights that the API server asks for while it serves another request: by group and resource, with that request."""
ELSEWHERE: Final = {
    ("gpu-share-certs", "update", "secrets"): (
        "tests/integration/controlplane/policies/test_certs.py",
        "test_a_corrupt_secret_is_mended_and_reported",
    ),
    ("gpu-share-enforcer", "delete", "resourceslices"): (
        "tests/integration/controlplane/test_slices.py",
        "test_a_large_node_takes_several_slices_of_one_generation",
    ),
    ("gpu-share-webhook", "create", "events"): (
        "tests/attack/controlplane/test_boundary.py",
        "test_where_admission_was_passed_the_controller_refuses_and_says_so",
    ),
    ("gpu-share-webhook", "delete", "resourceclaimtemplates"): (
        "tests/integration/controlplane/test_templates.py",
        "test_pods_that_come_and_go_leave_no_template",
    ),
}
"""Rights that no run on nodes needs, with the file and the test that does: by account, verb and resource."""


def unused(objects: Iterable[Mapping[str, Any]], used: set[Grant]) -> list[Grant]:
    """Return what the rendered chart grants and nobody used, sorted.

    ``list`` counts as used where ``watch`` was: lists are streamed as watches where the API server can.
    """
    streamed = {
        (who, Right("list", each.group, each.resource, each.name)) for who, each in used if each.verb == "watch"
    }
    found = [each for each in granted(list(objects)) if not _is_used(each, used | streamed)]
    return sorted((who, each) for who, each in found if (who, each.verb, each.resource) not in ELSEWHERE)


def _is_used(grant: Grant, used: set[Grant]) -> bool:
    account, right = grant
    if (right.group, right.resource) in NOT_LOGGED:
        return True
    rule = {"verbs": [right.verb], "apiGroups": [right.group], "resources": [right.resource]}
    names = {"resourceNames": [right.name]} if right.name else {}
    return any(given([rule | names], each) for who, each in used if who == account)


def granted(objects: list[Mapping[str, Any]]) -> Iterator[Grant]:
    """Yield each right of each service account that the chart binds."""
    roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in objects if each["kind"] in ROLES}
    for binding in (each for each in objects if each["kind"] in BINDINGS):
        rules = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]), ())
        for subject in binding["subjects"]:
            yield from ((subject["name"], right) for rule in rules for right in _rights(rule))


ROLES: Final = ("Role", "ClusterRole")
BINDINGS: Final = ("RoleBinding", "ClusterRoleBinding")


def _rights(rule: Mapping[str, Any]) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for name in rule.get("resourceNames", [""]):
                yield from (Right(verb, group, resource, name) for verb in rule["verbs"])
