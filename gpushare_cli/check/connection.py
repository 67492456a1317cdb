"""The connection of a check to the cluster, and what refusals of the API server mean for it."""

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.api_errors import lacking, sentence
from gpushare_cli.check.result import CheckResult, failed, warning

AS_OPERATOR: Final = "use the credentials of a cluster operator (--kubeconfig, --context)"

Ask = Callable[[KubeClient], CheckResult]


class Connection:
    """The cluster, connected to when first asked."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._where = kubeconfig, context
        self._cluster: KubeClient | None = None

    def connected(self, ask: Ask, without: Callable[[str], CheckResult]) -> CheckResult:
        """Connect and ask the first question; ``without`` makes the result where there is no cluster to ask."""
        try:
            self._cluster = KubeClient.connect(*self._where)
        except ClusterError as error:
            return replace(without(error.message), last=True)
        try:
            return ask(self._cluster)
        except ClusterError as error:
            return replace(refused(error), last=True)

    def asking(self, ask: Ask) -> Callable[[], CheckResult]:
        """Return the question with this cluster bound, so that an unreadable answer is a finding too."""
        return lambda: self._asked(ask)

    def _asked(self, ask: Ask) -> CheckResult:
        assert self._cluster is not None
        try:
            return ask(self._cluster)
        except ClusterError as error:
            return refused(error)


def refused(error: ClusterError) -> CheckResult:
    """What an error of the API server means: that something may not be asked is no fault."""
    if error.status == HTTPStatus.FORBIDDEN:
        what, hint = lacking(error) or ("ask this", AS_OPERATOR)
        return replace(warning(f"you may not {what}", hint), forbidden=True)
    return failed(sentence(error))
