"""Golden cases: a folder each with the pod as it comes in and what is answered, both to be read by people.

``pod.yaml`` is the object; beside it, where the case needs them, ``namespace.yaml`` (a Namespace with the operator's
annotations), ``settings.yaml`` (the chart's variables) and ``review.yaml`` (user, operation, subresource, old object,
own claims). ``expected.txt`` holds the answer, and the claim template that the pod then names, as lines of ``written``;
where the pod is patched, what differs from the answer of the case ``BASE``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.golden.written import difference, lines, restored
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

ROOT = Path(__file__).parent
BASE = ROOT / "memory-only"
AS_BASE = f"as {BASE.name}, except:"
"""First line of a file that holds a difference."""


@dataclass(frozen=True)
class Case:
    folder: Path

    @property
    def expected_file(self) -> Path:
        return self.folder / "expected.txt"

    @property
    def pod(self) -> dict[str, Any]:
        return self._read("pod")

    def decide(self, pod: dict[str, Any], more_claims: Iterable[str] = ()) -> Mutation:
        """Decide about a pod in the case's world, to which claims of our class may be added."""
        namespace, review = self._read("namespace"), self._read("review")
        return mutate_pod(
            pod,
            policy=NamespacePolicy.from_annotations((namespace.get("metadata") or {}).get("annotations")),
            settings=Settings.from_environment(self._read("settings")),
            user=review.get("user", "tenant"),
            operation=review.get("operation", "CREATE"),
            subresource=review.get("subresource", ""),
            old=review.get("old"),
            own_claims=frozenset((*review.get("ownClaims", ()), *more_claims)),
            other_claims=frozenset(review.get("otherClaims", ())),
        )

    def answer(self) -> dict[str, Any]:
        try:
            decision = self.decide(self.pod)
        except PolicyDenied as error:
            return {"reason": error.reason.value, "refusal": error.message}
        answer = {"reason": decision.reason.value, "warnings": list(decision.warnings), "patch": decision.patch}
        template = template_for(decision.pod) if decision.patch else None
        return answer | ({"template": template} if template else {})

    def text(self) -> str:
        """Return what the file of expectations has to be, given that of the base."""
        answer = self.answer()
        found = lines(answer)
        if answer.get("patch") and self.folder != BASE:
            found = [AS_BASE, *difference(Case(BASE).expected(), found)]
        return "\n".join(found) + "\n"

    def expected(self) -> list[str]:
        """Return the lines of the expected answer."""
        first, *others = self.expected_file.read_text(encoding="utf-8").splitlines()
        return restored(Case(BASE).expected(), others) if first == AS_BASE else [first, *others]

    @property
    def refused(self) -> bool:
        return any(line.startswith("refusal ") for line in self.expected())

    def _read(self, name: str) -> dict[str, Any]:
        file = self.folder / f"{name}.yaml"
        return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}


def cases() -> list[Case]:
    """Return all cases, the base first."""
    return [Case(BASE), *(Case(file.parent) for file in sorted(ROOT.glob("*/pod.yaml")) if file.parent != BASE)]
