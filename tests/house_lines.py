"""A ratchet on the product's size: lines of code of each package, without blank lines, comments and docstrings.

A package that shrinks lowers its number here. One that grows gets a row in ``RAISED`` with the feature that needs it.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Mapping
from typing import Final

LINES: Final = {
    "certs": 885,
    "enforcer": 14180,
    "gpushare": 2950,
    "gpushare_cli": 6360,
    "sidecar": 310,
    "webhook": 3957,
}
"""Lines of each package. A number here only falls."""
RAISED: Final[tuple[tuple[str, int, str], ...]] = (
    (
        "gpushare_cli",
        54,
        "what to do that fits who refuses a claim, and objects of the release that differ or were deleted",
    ),
    ("enforcer", 34, "an audit log whose newest file was changed, or that may not be written, found within seconds"),
    (
        "enforcer",
        35,
        "files, sockets and reserved space that heal, and a problem that names a folder that is read-only",
    ),
    ("gpushare", 12, "calls as another user, and a Reason for files of claims that cannot be written"),
    ("gpushare_cli", 20, "explain on a Job whose pods are gone, and on templates and volumes of the pod's own"),
    ("gpushare_cli", 81, "check on what others do to its test pod and its claim; explain on probes that fail"),
    ("gpushare", 4, "what people do about a damaged file of each format"),
    ("gpushare", 2, "kubeconfigs that make PyYAML raise whatever it can"),
    ("webhook", 5, "the same of its own files, and lists of namespaces of another shape"),
    ("webhook", 55, "the same share of the webhook for each namespace, also of its threads and memory"),
    ("webhook", 8, "a bound on the words that warnings read in all of a pod"),
    ("enforcer", 13, "kills of all processes of a container that has no first process"),
    ("enforcer", 6, "kills for bursts that are shorter than three samples"),
    ("enforcer", 19, "kills of containers that take turns over quota of some milliseconds"),
    ("enforcer", 4, "log lines of a bounded length, whatever number of processes a kill ended"),
    ("enforcer", 35, "quotas that are enforced beside a process that does not show whose it is"),
    ("gpushare", 1, "quotas that are enforced beside a process that does not show whose it is"),
    ("enforcer", 5, "a limit's condition that goes with its trouble, also one of an earlier enforcer"),
    ("gpushare_cli", 694, "manifests of other GPU systems: migrate, a third of it the table of dialects"),
    ("enforcer", 22, "audit logs that are verified again when somebody changes a file of theirs"),
    ("webhook", 9, "a warning of runtime classes of sandboxes"),
    ("enforcer", 8, "until when a pod of a namespace with many kills waits, and who was killed"),
    ("certs", 4, "the end of the serving certificate, noted where check may read it"),
    ("gpushare", 7, "the end of the serving certificate, noted where check may read it"),
    ("gpushare", 27, "suggestions for mistyped words at a bounded cost"),
    (
        "gpushare_cli",
        384,
        "why a pod waits for a node, and where a share could start, in explain and check",
    ),
    ("webhook", 22, "totals of a namespace in MiB and percent, by ResourceQuota"),
    ("gpushare", 13, "the same: its annotation and classes"),
    ("gpushare", 70, "fractions of a whole card in manifests: the table of frameworks"),
    ("webhook", 105, "the same: warnings, and the fraction of the share in their place"),
    ("gpushare_cli", 17, "the same, in explain and check"),
    (
        "gpushare_cli",
        29,
        "mistyped verbs; check: each namespace, our own Pod Security, unhealthy GPUs, nodes that only report",
    ),
    ("gpushare_cli", 1230, "ui: a web view of fleet, shares and kills"),
    ("gpushare_cli", 260, "advise: how much memory workloads should ask for"),
    ("enforcer", 340, "borrowed memory: who gives it back, and the wait for it"),
    ("enforcer", 51, "the same: loans on record, how long they take to come back, and how long a notice lasts"),
    ("sidecar", 10, "the same: the limit beside the quota"),
    ("gpushare_cli", 10, "the same, in top and explain"),
    ("gpushare", 6, "the same: its reason and its default"),
    ("gpushare", 33, "memory-limit and the namespaces that may borrow"),
    ("webhook", 24, "memory-limit"),
    ("enforcer", 488, "quotas from claims of NVIDIA's DRA driver"),
    ("gpushare", 8, "the same: its value and its reason"),
    ("gpushare_cli", 171, "report: GPU memory and kills of namespaces in a month, from Prometheus"),
    ("enforcer", 13, "the same: kills by namespace"),
    ("gpushare_cli", 19, "ui: logs that are read again on a report, nodes without an enforcer on the page of kills"),
    ("gpushare", 59, "versions of state files: an older release leaves those of a newer one alone"),
    ("enforcer", 41, "the same"),
    ("gpushare_cli", 31, "pods that wait for a claim, and for whom, in explain and check"),
    ("enforcer", 8, "the label of a node whose newest reading is the last taken, whichever thread read it"),
    ("certs", 2, "the same"),
    ("sidecar", 5, "the same"),
    ("gpushare_cli", 4, "the same"),
    ("gpushare_cli", 93, "ui and advise: peaks of two weeks and longer curves, from Prometheus"),
    ("enforcer", 14, "the last kills with pod, reason and time, for the dashboard"),
    ("gpushare_cli", 23, "check: whether cert-manager renews the serving certificate"),
    (
        "gpushare_cli",
        88,
        "check: labels that opt nothing in, shares that do not start, remedies by who refused; explain: no scheduler",
    ),
    ("webhook", 4, "a bound on objects and lists by the size of a review"),
    ("gpushare", 63, "kubeconfigs with certificates or a token, read without the official client"),
    ("gpushare_cli", 5, "help and completion of each verb that load nothing large"),
    ("certs", 3, "the remedy in messages that lacked one, and a bound on values that they quote"),
    ("enforcer", 13, "the same"),
    ("gpushare", 10, "the same"),
    ("gpushare_cli", 5, "the same"),
    ("gpushare", 8, "an end of the wait for a kubelet that hangs"),
    ("gpushare_cli", 3, "explain: a kubelet that has not looked at a pod"),
    ("gpushare_cli", 8, "check and explain: quotas on templates, who makes them, shares on nodes without the label"),
    ("gpushare_cli", 10, "what to do about a quota or a LimitRange, in explain; all namespaces, in check"),
    ("gpushare_cli", 38, "check: each replica of the webhook, rollouts, objects to which somebody added something"),
    ("webhook", 6, "the same: a new connection for each call of the check"),
    (
        "gpushare_cli",
        60,
        "check and explain: whose webhook or policy refuses, Deployments scaled to 0, deleted claims",
    ),
    ("gpushare_cli", 24, "check: a scheduler or controller-manager that has stopped, before a pod waits for it"),
    ("gpushare", 10, "the same: the clock of the API server"),
)
"""Package, lines more, and the feature that they are for, such as ``("webhook", 40, "shares of several GPUs")``."""
SLACK: Final = 100
"""Lines by which a package may be smaller than its number, so that not every change touches this file."""
_LAYOUT: Final = frozenset({
    tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT,
    tokenize.ENDMARKER,
})  # fmt: skip


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for each in tokens if each.type not in _LAYOUT for line in range(each.start[0], each.end[0] + 1)}
    return len(code - _docstring_lines(text))


def growth(
    trees: Mapping[str, str],
    limits: Mapping[str, int] = LINES,
    raised: tuple[tuple[str, int, str], ...] = RAISED,
) -> list[str]:
    """Return the packages whose lines are not those of the table, as sentences that say what to write."""
    found = Counter[str]()
    for path, text in trees.items():
        package = path.partition("/")[0]
        found[package] += code_lines(text) if package in limits else 0
    breaches = [f"tests/house_lines.py: {row!r} names no feature" for row in raised if not row[2].strip()]
    for package, lines in limits.items():
        limit = lines + sum(more for name, more, _ in raised if name == package)
        if found[package] > limit:
            breaches.append(
                f"{package}: {found[package]} lines of code, {found[package] - limit} more than before; remove some or "
                "add a row to RAISED in tests/house_lines.py that names the feature"
            )
        elif found[package] < limit - SLACK:
            breaches.append(
                f"{package}: {found[package]} lines of code instead of {limit}; lower its number in "
                f"tests/house_lines.py by {limit - found[package]}"
            )
    return breaches


def _docstring_lines(text: str) -> set[int]:
    """Return the lines of bare strings: docstrings, also those that stand under a constant."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
