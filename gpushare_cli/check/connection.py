"""The connection of a check to the cluster, its first question, and what refusals of the API server mean."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient, Object
from gpushare.patterns import Pattern
from gpushare_cli.check.result import Checker, CheckResult, failed, ok, warning
from gpushare_cli.words import lacking, refusal_remedy, sentence

AS_OPERATOR: Final = "use the credentials of a cluster operator (--kubeconfig, --context)"

CATEGORY: Final = "cluster"
OLDEST: Final = (1, 36)
FIRST_WITH_CLAIMS: Final = (1, 34)
"""Serves ``resource.k8s.io/v1``, though not by default what makes shares of it: of that the other questions tell."""
_VERSION: Final = Pattern(r"v(\d+)\.(\d+)", 128)
RELEASE: Final = Pattern(r"(\d{1,6})\.(\d{1,6})\.\d{1,6}", 64)
Ask = Callable[[KubeClient], CheckResult]


class ReadOnce(KubeClient):
    """Reads each object and each list at most once, failures included: all questions see one state of the cluster."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._known: dict[object, Any] = {}

    def get(self, where: str, **query: Any) -> Object:
        """Read an object."""
        found: Object = self._once(self._api.get, where, query)
        return found

    def list(self, where: str, **query: str) -> tuple[list[Object], str]:
        """Read a whole list."""
        found: list[Object] = self._once(partial(_trimmed, self._api), where, query)
        return found, ""

    def clock(self) -> datetime:
        """Return the API server's time."""
        return self._api.clock()

    def create(self, where: str, body: Object, **query: str) -> Object:
        """Create an object."""
        return self._api.create(where, body, **query)

    def acting_as(self, user: str) -> KubeClient:  # type: ignore[override] # it creates, which is not remembered
        """Return a client that asks as another user."""
        return self._api.acting_as(user)

    def _once(self, read: Callable[..., Any], where: str, query: dict[str, Any]) -> Any:
        key = (where, *sorted(query.items()))
        if key not in self._known:
            try:
                self._known[key] = read(where, **query)
            except ClusterError as error:
                self._known[key] = error
        if isinstance(found := self._known[key], ClusterError):
            raise found
        return found


def _trimmed(api: KubeClient, where: str, **query: str) -> list[Object]:
    """Read object after object, without what is large and no question reads: the job's pod has little memory."""
    found = {}
    for item in api.listing(where, **query):
        (about := item.get("metadata", {})).pop("managedFields", None)
        item.get("status", {}).pop("images", None)
        found[about.get("namespace"), about.get("name")] = item  # one that changes meanwhile comes twice
    return list(found.values())


def connected(
    kubeconfig: str | None, context: str | None, *, required: bool, questions: Callable[[], Iterable[tuple[str, Ask]]]
) -> Iterator[Checker]:
    """Yield questions that are asked over one connection, the version of Kubernetes first.

    Args:
        kubeconfig: how to reach the cluster.
        context: of the kubeconfig.
        required: whether it is wrong that there is no cluster to ask.
        questions: loads the others, which takes long; called once there is a connection.
    """
    cluster: list[KubeClient] = []

    def first() -> CheckResult:
        try:
            cluster.append(ReadOnce(KubeClient.connect(kubeconfig, context)))
        except ClusterError as error:
            return replace((failed if required else warning)(error.message), last=True)
        return asked(cluster[0], version, last=True)

    yield Checker(category=CATEGORY, description="Kubernetes", ask=first)
    for what, ask in questions() if cluster else ():
        yield Checker(category=CATEGORY, description=what, ask=partial(asked, cluster[0], ask))


def asked(api: KubeClient, ask: Ask, *, last: bool = False) -> CheckResult:
    """Ask a question; what the API server refuses is a finding too, and with ``last`` no other question follows."""
    try:
        return ask(api)
    except ClusterError as error:
        return replace(refused(error), last=last)


def refused(error: ClusterError) -> CheckResult:
    """What an error of the API server means: that something may not be asked is no fault."""
    hint = refusal_remedy(error.message)
    if error.status == HTTPStatus.FORBIDDEN and not hint:
        what, hint = lacking(error) or ("ask this", AS_OPERATOR)
        return replace(warning(f"you may not {what}", hint), forbidden=True)
    return (warning if error.status == HTTPStatus.FORBIDDEN else failed)(sentence(error), hint)


def version(api: KubeClient) -> CheckResult:
    """Compare the API server's version."""
    found = api.get("/version")
    server = str(found.get("gitVersion", ""))
    if (emulated := found.get("emulationMinor")) and emulated != found.get("minor"):
        server = f"v{found['emulationMajor']}.{emulated} (emulated by {server})"
    number, oldest = release(server, _VERSION), ".".join(map(str, OLDEST))
    if number is None:
        unread = f"the API server reports its version as {server!r:.80}; {oldest} or newer is needed"
        return warning(unread, "run kubectl version")
    if number < OLDEST:
        missing = failed(f"{server}; {oldest} is needed", f"upgrade the cluster to {oldest} or newer")
        return replace(missing, last=number < FIRST_WITH_CLAIMS)
    return ok(server)


def release(version: str, shape: Pattern[str] = RELEASE) -> tuple[int, int] | None:
    """Return major and minor of a version of that shape; ``None`` where it is not one."""
    match = shape.match(version)
    return None if match is None else (int(match.group(1)), int(match.group(2)))
