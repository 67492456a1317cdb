"""From a review that could be read to its answer: is it our business, under which policy, and what the core says."""

from dataclasses import dataclass
from typing import Final

from gpushare.reasons import Reason
from webhook import review
from webhook.decide import decide
from webhook.known import CLAIMS, TEMPLATES, Namespaces, OwnClaims
from webhook.review import Answer, Review
from webhook.settings import Settings

PODS: Final = ("", "pods")
OURS: Final = frozenset({("CREATE", ""), ("UPDATE", "ephemeralcontainers")})
"""Operation and subresource of what can bring a container; nothing else of a pod's that could is mutable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Responder:
    """Answers reviews. The namespace is the request's: an object's own metadata is whatever its author wrote."""

    settings: Settings
    namespaces: Namespaces
    claims: OwnClaims

    def __call__(self, asked: Review) -> Answer:
        """Answer one review.

        Raises:
            PolicyDenied: the pod breaks a rule.
            GpuShareError: the policy of its namespace cannot be had now.
        """
        if asked.resource != PODS or (asked.operation, asked.subresource) not in OURS:
            return review.allowed(asked.uid, Reason.NOT_A_POD)
        if asked.object is None:
            raise review.missing("request.object")
        decision = decide(
            asked.object,
            policy=self.namespaces.policy(asked.namespace),
            settings=self.settings,
            own_claims=self.claims.names(CLAIMS, asked.namespace) | self.claims.names(TEMPLATES, asked.namespace),
        )
        return review.patched(asked.uid, decision.patch, decision.reason, decision.warnings)
