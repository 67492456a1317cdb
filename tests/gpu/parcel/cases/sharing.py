"""Case 1: the README's own commands, on this machine."""

from gpushare import contract
from tests.e2e.site import TEAM
from tests.gpu.parcel.scene import Scene


def first_share(scene: Scene) -> str:
    """Install, offer, share, environment, check, sidecar's log."""
    site = scene.site
    before = scene.truth() if not scene.simulated else {}
    with scene.timed("install_s"):
        scene.block("install")
    site.until("the GPU is offered", scene.installed, 60)
    with scene.timed("verify_s"):
        said = scene.block("verify")
    env = site.environ(TEAM, "share", "share")
    uuid = site.uuid_of(site.bed.pod(TEAM, "share"), "share")
    wanted = {contract.CUDA_VISIBLE_DEVICES: uuid, contract.MPS_MEMORY_LIMIT: "0=4096M", contract.MEMORY_MIB: "4096"}
    wrong = {name: env.get(name) for name, value in wanted.items() if env.get(name) != value}
    assert not wrong, f"the share's environment has {wrong}, wanted {wanted}"
    log = site.logs(TEAM, "share")
    assert "watching this pod's share" in log, log
    with scene.timed("check_s"):
        checked = site.shell("gpu-share check --cluster --wait=30s", seconds=60)
    now = scene.truth()
    if before:
        assert now["compute_mode"] == before["compute_mode"], f"{before['compute_mode']} became {now['compute_mode']}"
    scene.figures |= {"environment": {name: env[name] for name in sorted(env) if "CUDA" in name or "SHARE" in name}}
    scene.figures |= {"verify": said.splitlines()[-12:], "check": checked.splitlines()[-12:], "sidecar": log[-2000:]}
    scene.figures |= {"gpu": now, "idle_mib": now["used_mib"]}
    took = f"installed in {scene.figures['install_s']} s, share verified in {scene.figures['verify_s']} s"
    return f"{took}, on {now['model']}"
