"""Case 5: programs of ``examples/frameworks``, as they stand there, with the frameworks of this machine."""

import time
from typing import Final

from tests.gpu.parcel.cases.measures import has
from tests.gpu.parcel.scene import Scene

PROGRAMS: Final = {"pytorch": "torch", "jax": "jax", "cupy": "cupy"}
"""The example and the module it imports; the image's name stands for this machine's own programs."""
SECONDS: Final = 75.0
NO_MODULE: Final = "ModuleNotFoundError"


def examples(scene: Scene) -> str:
    """Create all of them at once and wait for each Job."""
    scene.ensure_installed()
    site, said = scene.site, dict[str, str]()
    with scene.namespace("frameworks") as namespace:
        began = time.monotonic()
        for name in PROGRAMS:
            site.shell(f"kubectl -n {namespace} create -f examples/frameworks/{name}.yaml")
        for name, module in PROGRAMS.items():
            here = not scene.simulated and has(module)
            said[name] = _outcome(scene, namespace, name, max(5.0, SECONDS - (time.monotonic() - began)))
            scene.figures[name] = {"outcome": said[name], "log": _log(scene, namespace, name), "here": here}
            if not here:
                assert NO_MODULE in scene.figures[name]["log"], scene.figures[name]
                said[name] = "started; not on this machine"
    failed = {name: scene.figures[name] for name, outcome in said.items() if outcome == "failed"}
    assert not failed, failed
    return ", ".join(f"{name} {outcome}" for name, outcome in said.items())


def _outcome(scene: Scene, namespace: str, name: str, seconds: float) -> str:
    ask = f"kubectl -n {namespace} get pods -l job-name={name} -o jsonpath='{{.items[*].status.phase}}'"
    scene.site.until(f"{name} has ended", lambda: {"Succeeded", "Failed"} & set(scene.site.shell(ask).split()), seconds)
    return "succeeded" if "Succeeded" in scene.site.shell(ask) else "failed"


def _log(scene: Scene, namespace: str, name: str) -> str:
    ask = f"kubectl -n {namespace} logs -l job-name={name} --all-containers --tail=12 --prefix"
    return scene.site.shell(ask, check=False)[-1500:]
