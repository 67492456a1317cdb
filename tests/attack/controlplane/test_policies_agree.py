"""No policy refuses what the webhook admits: real pods, and random shares under random maximums, through both."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.attack.controlplane.people import CLAIMS_CONTROLLER, People, claims, refusal, templates
from tests.integration.controlplane.objects import Object
from tests.support.extent import trials
from tests.unit.webhook.mutation.test_corpus import templates as corpus  # noqa: F401 - a fixture
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

pytestmark = pytest.mark.controlplane
SHARES = trials(1000, 10_000)
POLICIES: tuple[dict[str, str], ...] = (
    {},
    {"gpu-share.io/max-memory": "4Gi"},
    {"gpu-share.io/max-memory": "1.5G", "gpu-share.io/default-memory": "1Gi"},
    {"gpu-share.io/max-compute": "50%"},
    {"gpu-share.io/max-memory": "8000M", "gpu-share.io/max-compute": "30", "gpu-share.io/default-compute": "5"},
)
AMOUNTS = ("512Mi", "1Gi", "1.5G", "1500000001M", "2Gi", "4Gi", "8000M", "12.5Gi", "1Ti")
SETTINGS = Settings(most_compute=1000)


def shares(count: int, seed: int) -> Iterator[Object]:
    """Pods that ask: app, init and sidecar containers, each with amounts of its own or none."""
    chosen = random.Random(seed)
    for number in range(count):
        names = [f"c{each}" for each in range(chosen.randint(1, 5))]
        inits = chosen.randint(0, len(names) - 1)
        annotations: dict[str, str] = {}
        for name in chosen.sample(names, chosen.randint(1, len(names))):
            annotations[f"memory.gpu-share.io/{name}"] = chosen.choice(AMOUNTS)
            if chosen.random() < 0.5:
                annotations[f"compute.gpu-share.io/{name}"] = f"{chosen.randint(1, 60)}%"
        if chosen.random() < 0.3:
            annotations["gpu-share.io/same-gpu"] = "false"
        if chosen.random() < 0.2:
            annotations["gpu-share.io/gpu-model"] = chosen.choice(["H100", "A100,L40", "rtx 6000"])
        stays: tuple[Object, Object] = ({}, {"restartPolicy": "Always"})
        first = [{"name": name, "image": "x", **chosen.choice(stays)} for name in names[:inits]]
        spec = {"initContainers": first, "containers": [{"name": name, "image": "x"} for name in names[inits:]]}
        yield {"metadata": {"name": f"p{number}", "annotations": annotations}, "spec": spec}


def wanted(pods: Iterator[Object] | list[Object]) -> dict[tuple[int, str], Object]:
    """By policy and name, the templates of all pods that the webhook admits under some policy."""
    found: dict[tuple[int, str], Object] = {}
    policies = [NamespacePolicy.from_annotations(each) for each in POLICIES]
    for pod in pods:
        for number, policy in enumerate(policies):
            try:
                template = template_for(mutate_pod(pod, policy=policy, settings=SETTINGS).pod)
            except PolicyDenied:
                continue
            if template is not None:
                found[number, template["metadata"]["name"]] = template
    return found


def refused(people: People, found: dict[tuple[int, str], Object]) -> list[str]:
    """What the policies say against the templates, written by the webhook, and the claims made from them."""
    namespaces = [people.bed.namespace("agreed", annotations=each) for each in POLICIES]
    webhook, controller = people.webhook, people.acting(CLAIMS_CONTROLLER)

    def tried(key: tuple[int, str]) -> str:
        template, where = found[key], namespaces[key[0]]
        claim = {"metadata": {"name": "made"}, "spec": template["spec"]["spec"]}
        denied = refusal(webhook, templates(where), template, dryRun="All")
        denied = denied or refusal(controller, claims(where), claim, dryRun="All")
        # The API server itself refuses what is no valid name, as some pods of the corpus have.
        return f"{POLICIES[key[0]]} {template['spec']}: {denied}" if "ValidatingAdmissionPolicy" in denied else ""

    with ThreadPoolExecutor(4) as threads:
        return [each for each in threads.map(tried, found) if each]


def test_random_shares_pass_the_policies(people: People) -> None:
    seed = random.randrange(2**32)
    found = wanted(shares(SHARES, seed))
    assert len(found) > SHARES / 10
    assert refused(people, found) == [], seed


def test_the_corpus_passes_the_policies(people: People, corpus: list[Object]) -> None:  # noqa: F811 - the fixture
    found = wanted(corpus)
    assert found
    assert refused(people, found) == []
