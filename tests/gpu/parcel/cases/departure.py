"""Case 8: pods go under load, the product is uninstalled, and the card is as it was found."""

import time
from typing import Final

from tests.e2e.site import SYSTEM, TEAM
from tests.gpu.parcel import tenants
from tests.gpu.parcel.image import PLAIN
from tests.gpu.parcel.scene import Scene

LOAD: Final = 4


def departure(scene: Scene) -> str:
    """Delete pods that compute, then uninstall."""
    scene.ensure_installed()
    site = scene.site
    with scene.namespace("leaving") as namespace:
        for number in range(LOAD):
            site.create(namespace, tenants.pod(f"load-{number}", scene.programs.compute(1024), "2Gi"))
        for number in range(LOAD):
            site.running(namespace, f"load-{number}")
        time.sleep(2)
        scene.figures["under_load"] = scene.truth()
        with scene.timed("deletion_s"):
            for number in range(LOAD):
                site.remove(namespace, f"load-{number}")
            site.until("the pods are gone", lambda: not site.pods(namespace), 60)
        site.until("nothing of them is left", lambda: len(site.leftovers()) == 0, 20)
    if site.find_pod(TEAM, "share") is None:
        site.shell(f"kubectl create namespace {TEAM} --dry-run=client -o yaml | kubectl apply -f -")
        site.shell(f"kubectl -n {TEAM} run share --image={PLAIN} --image-pull-policy=Never --command -- sleep 1")
    loaded = scene.truth()
    with scene.timed("uninstall_s"):
        scene.block("uninstall")
    site.until("the system's pods are gone", lambda: not site.pods(SYSTEM), 60)
    scene.figures["left"] = site.leftovers()
    assert not scene.figures["left"], scene.figures["left"]
    if scene.simulated:  # the simulated driver goes with the product
        return f"pods gone in {scene.figures['deletion_s']} s, product in {scene.figures['uninstall_s']} s"
    found = scene.truth()
    scene.figures["found_again"] = found
    assert not found["processes"], f"processes are left: {found}"
    assert found["compute_mode"] == "DEFAULT" == loaded["compute_mode"], found
    return (
        f"pods gone in {scene.figures['deletion_s']} s, product in {scene.figures['uninstall_s']} s; "
        f"{found['used_mib']} MiB in use, compute mode {found['compute_mode']}"
    )
