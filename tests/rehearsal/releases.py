"""What steps do to the release: other images, an earlier commit, other values, uninstallation."""

import json
import re
import time
from random import Random
from typing import Final

from tests.e2e import readme
from tests.e2e.site import OPTIONS, SYSTEM, Site
from tests.fakes.gpu.node import DRIVER
from tests.rehearsal.acts import ENFORCER, WEBHOOK, Act
from tests.rehearsal.state import LABEL, REPLICA
from tests.testbed.cluster import images

OTHER: Final = f"--reuse-values --set image.tag={images.UPGRADED} --set simulate.image.tag={images.UPGRADED}"
UPGRADE: Final = f"helm upgrade gpu-share deploy/helm/gpu-share --namespace {SYSTEM}"
CHART: Final = f"{UPGRADE} --reuse-values"
TO_THIS: Final = f"{UPGRADE} --reset-then-reuse-values --set image.tag= --set simulate.image.tag="
OF_EARLIER: Final = f"--set image.tag={images.EARLIER} --set simulate.image.tag={images.EARLIER}"
TO_EARLIER: Final = f"cd {images.EARLIER} && {UPGRADE} --reset-then-reuse-values {OF_EARLIER}"
UNINSTALL: Final = "helm uninstall gpu-share --namespace gpu-share-system"


def ready(site: Site) -> None:
    """Wait until webhook and enforcer are rolled out. Not the MPS pods, which only people replace."""
    for part in (f"deployment/{WEBHOOK}", f"daemonset/{ENFORCER}"):
        site.shell(f"kubectl -n {SYSTEM} rollout status {part} --timeout=3m")


def upgraded_and_back(site: Site, _: str, rng: Random) -> None:
    """Upgrade to other images and roll back, with the commands of the documents."""
    site.run_block("upgrade", readme.UPGRADES, OPTIONS=f"{OPTIONS} {OTHER}")
    time.sleep(rng.uniform(0, 10))
    site.run_block("back", readme.NIGHT)


def earlier_and_back(site: Site, namespace: str, rng: Random) -> None:
    """Go to an earlier commit, upgrade from it, roll the upgrade back, and upgrade again.

    The Deployment's pods are made anew at the earlier commit: their sidecars stay of it, through later steps as well.
    """
    for number, command in enumerate((TO_EARLIER, TO_THIS, f"helm rollback gpu-share --namespace {SYSTEM}", TO_THIS)):
        site.shell(command)
        ready(site)
        if number == 0:
            site.shell(f"kubectl -n {namespace} rollout restart deployment -l {LABEL}={REPLICA}")
        time.sleep(rng.uniform(5, 15))


def of_an_earlier_commit(template: str) -> Act:
    """Have one part as the chart of an earlier commit makes it, beside the rest, for some seconds."""
    render = f"helm template gpu-share deploy/helm/gpu-share --namespace {SYSTEM} --show-only templates/{template}"

    def act(site: Site, _: str, rng: Random) -> None:
        values = f"helm get values gpu-share --namespace {SYSTEM} --output yaml"
        # As helm, so that the next upgrade takes away what only the earlier commit has.
        apply = "kubectl apply --server-side --field-manager=helm --force-conflicts -f -"
        site.shell(f"cd {images.EARLIER} && {values} | {render} --values - {OF_EARLIER} | {apply}")
        ready(site)
        time.sleep(rng.uniform(5, 15))
        site.shell(f"{CHART} --force-conflicts")
        ready(site)

    return act


def of_another_image(part: str, container: str) -> Act:
    """Have one part of another image than the rest for some seconds."""

    def act(site: Site, _: str, rng: Random) -> None:
        site.shell(f"kubectl -n {SYSTEM} set image {part} {container}=gpu-share:{images.UPGRADED}")
        ready(site)
        time.sleep(rng.uniform(5, 15))
        # The images are helm's own again, or the next upgrade conflicts with kubectl's change.
        site.shell(f"{CHART} --force-conflicts")
        ready(site)

    return act


def with_values(*values: str, back: str) -> Act:
    """Have other values for some seconds; ``back``: those of before."""

    def act(site: Site, _: str, rng: Random) -> None:
        site.shell(f"{CHART} --set {','.join(values)}")
        ready(site)
        time.sleep(rng.uniform(5, 15))
        site.shell(f"{CHART} --set {back}")
        ready(site)

    return act


def uninstallation_refused(site: Site, _: str, __: Random) -> None:
    """Uninstall while there are shares, which is refused, and keep the release, with the commands of the documents."""
    output = site.shell(UNINSTALL, check=False)
    revision = re.search(r"helm rollback gpu-share (\d+) ", output)
    assert "nothing was changed" in output, output
    assert revision, output
    site.run_block("refused", readme.NIGHT, REVISION=revision[1])


def uninstalled_and_installed(site: Site, _: str, rng: Random) -> None:
    """Uninstall although there are shares, and install again."""
    options = f"{OPTIONS} --set simulate.driver={driver(site)}"
    site.shell(f"{CHART} --set uninstall.waitForClaims=false")
    site.shell(f"{UNINSTALL} --wait")
    time.sleep(rng.uniform(0, 10))
    site.shell(f"helm install gpu-share deploy/helm/gpu-share --namespace {SYSTEM} --wait {options}")
    ready(site)


def driver(site: Site) -> str:
    """Version of the simulated driver."""
    values = json.loads(site.shell(f"helm get values gpu-share --namespace {SYSTEM} --output json"))
    return str(values.get("simulate", {}).get("driver", DRIVER))
