"""The connection of a check to the cluster, and what refusals of the API server mean for it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient, Object
from gpushare_cli.api_errors import lacking, sentence
from gpushare_cli.check.result import CheckResult, failed, warning

AS_OPERATOR: Final = "use the credentials of a cluster operator (--kubeconfig, --context)"

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

    def create(self, where: str, body: Object, **query: str) -> Object:
        """Create an object."""
        return self._api.create(where, body, **query)

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
    found = []
    for item in api.listing(where, **query):
        item.get("metadata", {}).pop("managedFields", None)
        item.get("status", {}).pop("images", None)
        found.append(item)
    return found


class Connection:
    """The cluster, connected to when first asked."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._where = kubeconfig, context
        self._cluster: KubeClient | None = None

    def connected(self, ask: Ask, without: Callable[[str], CheckResult]) -> CheckResult:
        """Connect and ask the first question; ``without`` makes the result where there is no cluster to ask."""
        try:
            self._cluster = ReadOnce(KubeClient.connect(*self._where))
        except ClusterError as error:
            return replace(without(error.message), last=True)
        return asked(self._cluster, ask, last=True)

    def asking(self, ask: Ask) -> Callable[[], CheckResult]:
        """Return the question with this cluster bound, so that an unreadable answer is a finding too."""

        def bound() -> CheckResult:
            assert self._cluster is not None
            return asked(self._cluster, ask)

        return bound


def asked(api: KubeClient, ask: Ask, *, last: bool = False) -> CheckResult:
    """Ask a question; what the API server refuses is a finding too, and with ``last`` no other question follows."""
    try:
        return ask(api)
    except ClusterError as error:
        return replace(refused(error), last=last)


def refused(error: ClusterError) -> CheckResult:
    """What an error of the API server means: that something may not be asked is no fault."""
    if error.status == HTTPStatus.FORBIDDEN:
        what, hint = lacking(error) or ("ask this", AS_OPERATOR)
        return replace(warning(f"you may not {what}", hint), forbidden=True)
    return failed(sentence(error))
