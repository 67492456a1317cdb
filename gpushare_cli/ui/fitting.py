"""Would a share fit: a pod as the form describes it, rewritten by the webhook's code and placed by ``placement``."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare_cli.inject import command, rewrite
from gpushare_cli.inject.arguments import add_policy_options
from gpushare_cli.inject.workloads import pods
from gpushare_cli.placement.placing import Cluster, Hindrance, Room, place, rooms
from gpushare_cli.words import clean
from webhook.mutation.resourceclaims import template_for

FIELDS: Final[Mapping[str, str]] = {
    "memory": contract.MEMORY, "compute": contract.COMPUTE, "gpus": contract.GPUS, "model": contract.GPU_MODEL,
}  # fmt: skip
"""Fields of the form and the annotations that they become."""
MAIN: Final = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where a share could start now, how many of them, and what keeps it from elsewhere; or why it would be denied."""

    rooms: tuple[Room, ...] = ()
    hindrances: tuple[Hindrance, ...] = ()
    denied: tuple[str, ...] = ()
    known: bool = True

    @property
    def pods(self) -> int:
        """So many pods of this size fit now."""
        return sum(each.pods for each in self.rooms)


def policy_options() -> argparse.Namespace:
    """Return the options of ``explain`` and ``inject`` about the webhook's settings, with nothing given."""
    parser = argparse.ArgumentParser()
    add_policy_options(parser)
    return parser.parse_args([])


def fit(form: Mapping[str, str], namespace: str, cluster: Cluster) -> Fit:
    """Say where a pod with this form's annotations and node selector could start now."""
    (there,) = pods(_pod(form))
    try:
        change = rewrite.change_of(there, command.admit_for([], policy_options()), namespace)
    except PolicyDenied as error:
        return Fit(denied=tuple(clean(str(each)) for each in error.problems))
    template = template_for(change.pod)
    if template is None:
        return Fit(denied=(f"{contract.MEMORY} is empty: write for example 4Gi",))
    found = place(change.pod, [template["spec"]], cluster)
    here = rooms(template["spec"], cluster, found.nodes or ())
    return Fit(rooms=tuple(here), hindrances=found.hindrances, known=found.nodes is not None)


def _pod(form: Mapping[str, str]) -> dict[str, Any]:
    annotations = {key: form[name].strip() for name, key in FIELDS.items() if form.get(name, "").strip()}
    chosen = (each.partition("=") for each in form.get("selector", "").split(",") if each.strip())
    selector = {key.strip(): value.strip() for key, _, value in chosen}
    spec = {"containers": [{"name": MAIN, "image": MAIN}], **({"nodeSelector": selector} if selector else {})}
    metadata = {"name": "pod", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
