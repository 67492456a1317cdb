"""Claims of NVIDIA's DRA driver: a stand-in publishes as it does, the stock scheduler allocates, the enforcer reads.

The enforcer is the product's own program with the rights of the chart. What follows is worked out from what was drawn
and from the devices that the scheduler named.
"""

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.fakes.gpu.machine import Machine
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.integration.controlplane import manifests, programs
from tests.integration.controlplane.bed import CLAIMS, PODS, SYSTEM, TEMPLATES, Bed, may
from tests.integration.controlplane.foreign_cases import KINDS, MANY, WHOLE, Case, Rows, draw
from tests.integration.controlplane.kubelet import Kubelet, hierarchy, tenant
from tests.integration.controlplane.nvidia_driver import Publisher
from tests.integration.controlplane.objects import Object
from tests.support import helm
from tests.support.extent import trials
from tests.support.need import missing
from tests.support.patience import patient
from tests.support.podresources import pod_resources
from tests.testbed.cluster.processes import Process, alive, wait_gone

pytestmark = pytest.mark.controlplane
NODE: Final = "with-nvidia-driver"
POLL: Final = 0.25
ROUND: Final = 48
ROUNDS: Final = trials(1, 20)
"""A round has about 55 claims."""
CARDS: Final = 6
ROLE: Final = "gpu-share-enforcer"
WHILE: Final = 1.5
"""Seconds in which a quota that is to stay is looked at."""
ADMIN_ACCESS: Final = {"resource.kubernetes.io/admin-access": "true"}


def machine() -> Machine:
    """Instances on one card, and whole cards beside it."""
    cut = Machine.named("mig")
    first, card = cut.gpus
    more = (
        replace(card, uuid=f"{card.uuid[:-1]}{minor}", minor=minor, pci=f"00000000:{minor}8:00.0")
        for minor in range(1, CARDS + 1)
    )
    return replace(cut, gpus=(first, *more))


@dataclass(slots=True, kw_only=True)
class Site:
    """One node with simulated GPUs, NVIDIA's driver played, and our enforcer."""

    bed: Bed
    driver: Publisher
    sim: Sim
    kubelet: Kubelet
    folder: Path
    kubeconfig: Path
    library: Path
    enforcer: Process | None = None

    def enforce(self, value: str) -> None:
        """Start the enforcer with this ``enforcer.foreignClaims``, in place of the one that runs."""
        if self.enforcer is not None:
            self.bed.stop(self.enforcer)
        command = programs.enforcer(NODE, self.kubeconfig, self.folder, POLL, self.folder / "kubelet")
        environment = programs.environment(**self.sim.environment(self.library))
        self.status.unlink(missing_ok=True)
        self.enforcer = self.bed.plane.add("enforcer-foreign", [*command, f"--foreign-claims={value}"], environment)
        self.bed.until("the enforcer looks", self.status.exists)

    @property
    def status(self) -> Path:
        """What the enforcer writes now and then."""
        return self.folder / "state" / "status.json"

    def client(self) -> KubeClient:
        return KubeClient.connect(str(self.kubeconfig))

    def rows(self) -> list[Object]:
        file = self.folder / "state" / "foreign" / "checkpoint.json"
        return list(json.loads(file.read_text())["quotas"]) if file.exists() else []

    def quotas(self) -> Rows:
        return {(each["podUid"], each["container"], each["gpu"]): each["memoryMib"] for each in self.rows()}

    def found(self) -> dict[str, str]:
        """By claim, the cause that the log names last."""
        lines = self.bed.plane.log("enforcer-foreign").read_text().splitlines()
        written = [json.loads(line) for line in lines if line.startswith("{")]
        ours = [each for each in written if each.get("event") == "claim without quota"]
        return {each["found"].split()[1]: each["cause"] for each in ours}

    def create(self, namespace: str, case: Case) -> None:
        """Create the claims or templates of a case, then its pods."""
        for kind, body in case.objects():
            self.bed.cluster.create(path(RESOURCE_V1, kind, namespace=namespace), body)
        for pod in case.pods(NODE):
            self.bed.create(namespace, pod)

    def expected(self, namespace: str, cases: list[Case]) -> tuple[Rows, dict[str, str]]:
        """Work out quotas, and the cause of each claim that gives none, from the allocations."""
        pods = {each["metadata"]["name"]: each for each in self.bed.list(PODS, namespace)}
        claims = {each["metadata"]["name"]: each for each in self.bed.list(CLAIMS, namespace)}
        rows: Rows = {}
        causes: dict[str, str] = {}
        for case in cases:
            for name in case.pod_names():
                case.add(pods[name], claims, self.driver.uuids(), rows, causes)
        return rows, {f"{namespace}/{claim}": cause for claim, cause in causes.items()}


@pytest.fixture(scope="module", name="site")
def _site(bed: Bed) -> Iterator[Site]:
    library, root = need_library(), hierarchy()
    helm.need()
    if root is None:
        missing("control groups cannot be made here (root on Linux can)")
    with tempfile.TemporaryDirectory(prefix="nv-") as place:  # a socket's path must be short
        folder = Path(place)
        sim = Sim.create(folder / "sim", machine())
        driver = Publisher(bed.cluster, NODE, sim.machine)
        kubeconfig = bed.plane.service_account(SYSTEM, ROLE, bed.node(NODE, slices=False))
        kubelet = Kubelet(bed=bed, node=NODE, root=root, logs=folder)
        made = Site(
            bed=bed, driver=driver, sim=sim, kubelet=kubelet, folder=folder, kubeconfig=kubeconfig, library=library
        )
        driver.install()
        driver.publish()
        with pod_resources(folder / "kubelet"):
            yield made
        kubelet.close()
        if made.enforcer is not None:
            bed.stop(made.enforcer)
        driver.remove()
        bed.cluster.delete(path(CORE_V1, "nodes", NODE))
        manifests.apply(bed.cluster, [each for each in manifests.load() if _is_role(each)])


def _is_role(item: Object) -> bool:
    return bool(item["kind"] == "ClusterRole" and item["metadata"]["name"] == ROLE)


def plain(name: str, mib: int = 3072, **changes: object) -> Case:
    return replace(draw(random.Random(name), name, "one container", mib=mib), **changes)  # type: ignore[arg-type] # any field


def bound(site: Site, namespace: str, case: Case) -> Object:
    site.create(namespace, case)
    return site.bed.wait_bound(namespace, case.pod_names()[0])


def test_with_the_value_off_no_claim_is_read(site: Site) -> None:
    bed, namespace = site.bed, site.bed.namespace("foreign")
    site.enforce("off")
    bound(site, namespace, plain("a"))
    looked = site.status.stat().st_mtime
    bed.until("the enforcer looks again", lambda: site.status.stat().st_mtime > looked)
    assert not (site.folder / "state" / "foreign").exists()
    assert not may(site.client(), "list", "resource.k8s.io", CLAIMS, "")
    bed.empty(namespace)


def test_with_the_value_set_the_charts_rights_are_enough(site: Site) -> None:
    rendered = helm.objects("--set-string=enforcer.foreignClaims=enforce")
    manifests.apply(site.bed.cluster, [each for each in rendered if _is_role(each)])
    site.bed.until("the right is known", lambda: may(site.client(), "watch", "resource.k8s.io", CLAIMS, ""))
    site.enforce("enforce")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_quotas_are_those_that_follow_from_what_the_scheduler_allocated(site: Site, number: int) -> None:
    bed, dice = site.bed, random.Random(f"round {number}")
    namespace = bed.namespace("foreign", labels=ADMIN_ACCESS)
    kinds = [*KINDS, *dice.choices(MANY, k=ROUND - len(KINDS))]
    cases = [draw(dice, f"{index}", kind) for index, kind in enumerate(kinds)]
    for case in cases:
        site.create(namespace, case)
        if case.kind in WHOLE:
            bed.wait_bound(namespace, case.pod_names()[0])
    bed.until("all are bound", lambda: all(each["spec"].get("nodeName") for each in bed.list(PODS, namespace)), 60)
    quotas, causes = site.expected(namespace, cases)
    bed.until("the quotas are those", lambda: site.quotas() == quotas, 10)
    bed.until("each other claim has its finding", lambda: in_namespace(site, namespace) == causes, 5)
    assert {each["onExceed"] for each in site.rows()} == {"kill"}
    print(f"\n{len(bed.list(CLAIMS, namespace))} claims, {len(quotas)} quotas, {Counter(causes.values())}")
    empty(site, namespace)
    bed.until("no quota is left", lambda: site.quotas() == {})


def in_namespace(site: Site, namespace: str) -> dict[str, str]:
    return {claim: cause for claim, cause in site.found().items() if claim.startswith(f"{namespace}/")}


def empty(site: Site, namespace: str) -> None:
    site.bed.empty(namespace)
    for kind in (CLAIMS, TEMPLATES):
        site.bed.delete_all(path(RESOURCE_V1, kind, namespace=namespace))
    site.bed.until("all claims are gone", lambda: site.bed.list(CLAIMS, namespace) == [])


def test_elsewhere_a_quota_warns_alone(site: Site) -> None:
    namespace = site.bed.namespace("foreign", opted_in=False)
    bound(site, namespace, plain("a"))
    site.bed.until("the quota is there", lambda: [each["onExceed"] for each in site.rows()] == ["warn"])
    empty(site, namespace)


def test_quotas_stay_while_the_driver_is_away_and_follow_its_newest_generation(site: Site) -> None:
    bed, namespace = site.bed, site.bed.namespace("foreign")
    first, second = plain("first"), plain("second", mib=2048)
    for case in (first, second):
        bound(site, namespace, case)
    quotas, _ = site.expected(namespace, [first, second])
    bed.until("both have quotas", lambda: site.quotas() == quotas)
    site.driver.withdraw()
    site.enforce("enforce")
    for_a_while(site, quotas)
    site.driver.publish()
    moved = swapped(site)
    site.driver.publish(others=moved, generation=1)
    for_a_while(site, quotas)
    site.driver.publish(others=moved, lacking=1)
    for_a_while(site, quotas)
    site.driver.publish(others=moved)
    bed.until("no quota is for a device that became another GPU", lambda: site.quotas() == {})
    bed.until("and says so", lambda: set(in_namespace(site, namespace).values()) == {"changed"})
    site.driver.publish()
    bed.until("they are back with their devices", lambda: site.quotas() == quotas)
    empty(site, namespace)


def swapped(site: Site) -> dict[str, str]:
    """Return the UUIDs of whole cards, each with that of the next one."""
    cards = {name: uuid for name, uuid in site.driver.uuids().items() if "mig" not in name}
    return dict(zip(cards, [*list(cards.values())[1:], next(iter(cards.values()))], strict=True))


def for_a_while(site: Site, quotas: Rows) -> None:
    """Look for long enough to see a change that would come."""
    end = time.monotonic() + WHILE
    while time.monotonic() < end:
        assert site.quotas() == quotas
        time.sleep(POLL)


@pytest.mark.parametrize(("shares", "cause"), [("unlimited", "whole"), ("4", "whole"), ("disabled", "exclusive")])
def test_whatever_the_driver_is_set_to_a_claim_without_an_amount_has_no_quota(
    site: Site, shares: str, cause: str
) -> None:
    """With a number of shares, or without a limit, it takes none of the memory; without sharing, the whole GPU."""
    bed, namespace = site.bed, site.bed.namespace("foreign")
    site.driver.publish(shares=shares)
    cases = [plain("whole", kind="a whole GPU"), *([] if shares == "disabled" else [plain("part")])]
    for each in cases:
        bound(site, namespace, each)
    quotas, causes = site.expected(namespace, cases)
    bed.until("who asked for memory has a quota", lambda: site.quotas() == quotas)
    bed.until("the other one has a finding", lambda: in_namespace(site, namespace) == dict.fromkeys(causes, cause))
    empty(site, namespace)
    site.driver.publish()


def test_a_container_over_its_quota_is_killed_and_none_whose_claim_cannot_be_read(site: Site) -> None:
    bed = site.bed
    namespace = bed.namespace("foreign", annotations={contract.GRACE_PERIOD: "1s"})
    greedy, beside = plain("greedy"), draw(random.Random("beside"), "beside", "two containers", mib=1024)
    pods = [bound(site, namespace, each) for each in (greedy, beside)]
    quotas, _ = site.expected(namespace, [greedy, beside])
    ((_, _, gpu),) = quotas
    bed.until("the quota is there", lambda: site.quotas() == quotas)
    command = tenant(gpu, 9000)
    over, unread = (site.kubelet.run(pod, "main", command, site.sim.environment()) for pod in pods)
    assert wait_gone(over.process, patient(20)), bed.plane.tails(["enforcer-foreign"])
    assert alive(unread.process)
    assert ended(site) == [(pods[0]["metadata"]["uid"], over.process.pid)]
    site.kubelet.close()
    empty(site, namespace)


def ended(site: Site) -> list[tuple[str, int]]:
    """Pod UID and pid of each kill that the audit log has."""
    segments = sorted((site.folder / "state" / "audit").glob("kills-*.jsonl"))
    records = [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]
    return [(each["pod"]["uid"], each["pid"]) for each in records if each["kind"] == "INTENT"]
