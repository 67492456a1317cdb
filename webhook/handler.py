"""From a review that could be read to its answer: is it our business, under which policy, and what the core says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpushare.errors import RequestError
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.podview import read_annotations
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import requests_share
from webhook.serving import review
from webhook.serving.review import Answer, Review

PODS: Final = ("", "pods")
OURS: Final = frozenset({"CREATE", "UPDATE"})
"""A DELETE or CONNECT is never ours to block, whatever object it comes with."""
SHARING: Final = frozenset({Reason.APPLIED, Reason.UNCHANGED})
NO_POLICY: Final = NamespacePolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionHandler:
    """Answers reviews. The namespace is the request's: an object's own metadata is whatever its author wrote."""

    settings: Settings
    namespaces: NamespacePolicyCache
    claims: KnownClaims
    standing: Callable[[str, str], int | None] = lambda _namespace, _name: None
    """What a claim template asks for, by namespace and name; see ``mutate.decide``."""
    admitted: Callable[[str, Mapping[str, Any]], None] = lambda _namespace, _pod: None
    """Takes each sharing pod that is about to be created, by namespace, as mutated; returns within a moment."""

    def __call__(self, asked: Review) -> Answer:
        """Answer one review.

        Raises:
            RequestError: there is no object to mutate.
            PolicyDenied: the pod breaks a rule.
            GpuShareError: the policy of its namespace cannot be had now.
        """
        if asked.resource != PODS or asked.operation not in OURS:
            return review.allowed(asked.uid, Reason.NOT_A_POD)
        if asked.object is None:
            raise RequestError("request.object is missing")
        decision = mutate_pod(
            asked.object,
            policy=self._policy(asked, asked.object),
            settings=self.settings,
            user=asked.user,
            operation=asked.operation,
            subresource=asked.subresource,
            old=asked.old_object,
            own_claims=self.claims.own(asked.namespace),
            other_claims=self.claims.others(asked.namespace),
            standing=partial(self.standing, asked.namespace),
        )
        created = asked.operation == "CREATE" and not asked.subresource and not asked.dry_run
        if created and decision.reason in SHARING:
            self.admitted(asked.namespace, decision.pod)
        return review.patched(asked.uid, decision.patch, decision.reason, decision.warnings)

    def _policy(self, asked: Review, pod: Mapping[str, Any]) -> NamespacePolicy:
        """The namespace's policy where it matters: what has no ceiling to keep must not wait for one."""
        if asked.operation != "CREATE" or asked.subresource or not requests_share(read_annotations(pod)):
            return NO_POLICY
        return self.namespaces.policy(asked.namespace)
