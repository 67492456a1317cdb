"""``gpu-share uninstall``: what the chart's hooks run around the removal of a release.

``before`` refuses at once while claims of our classes exist, and else takes the webhook configuration away: a pod with
a prepared claim cannot end without the enforcer, and nothing must be asked of a webhook that is gone. ``after`` waits
for the last program of ours and removes what the programs made: resource slices, claim templates, certificates.
``node`` does the same for the files of one node. All can be repeated.
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from enforcer.runtime import lock
from gpushare import contract
from gpushare.errors import ClusterError, ConfigError
from gpushare.kube_client import ADMISSION_V1, APPS_V1, CORE_V1, RESOURCE_V1, KubeClient, find, path
from gpushare.reasons import Reason
from gpushare_cli.prepared import allocated
from gpushare_cli.terminal import FINE, NOT_FINE
from gpushare_cli.words import some

LOOK_SECONDS: Final = 2.0
POLICY_SECONDS: Final = 20.0
"""Seconds after which a deleted policy has to be out of the API server's cache."""
CLAIM_SECONDS: Final = LOOK_SECONDS
"""A claim goes within a second of its pod. Helm shows nothing while this waits."""
CLASSES: Final = frozenset({contract.DEVICE_CLASS, contract.MIG_DEVICE_CLASS, contract.STATUS_DEVICE_CLASS})
CONFIGURATION: Final = "gpu-share"
CLEANER: Final = "gpu-share-clean"
SIMULATOR: Final = "simulator"
PROGRAMS: Final = "app.kubernetes.io/name in (gpu-share-enforcer,gpu-share-certs)"
"""What writes slices and Secrets."""
SECRETS: Final = ("gpu-share-webhook-tls", "gpu-share-webhook-tls-ca")
HASH_DIGITS: Final = 16

Object = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where time comes from; ``seconds`` is how long to wait in all."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that asks for devices of our classes: its ``namespace/name``, and the pods it is of, if any.

    ``allocated``: it was allocated, so that pods of it may run; else it only waits for a GPU.
    """

    place: str
    pods: tuple[str, ...]
    allocated: bool

    def __str__(self) -> str:
        whose = f"of pod {some(self.pods)}" if self.pods else "of no pod"
        return f"{self.place} ({whose})"


def run(args: argparse.Namespace) -> int:
    """Run one of them. Returns 1 when claims or programs are still there."""
    clock = Clock(seconds=args.timeout)
    if args.when == "node":
        return node(args, clock)
    api = KubeClient.connect(args.kubeconfig)
    if args.when == "after":
        return after(api, args.namespace, clock)
    code = before(api, Clock(seconds=min(args.timeout, CLAIM_SECONDS)), ignore_claims=args.ignore_claims)
    if code == NOT_FINE and args.release:
        name, _, revision = args.release.rpartition("/")
        print(f"  to keep the release instead: helm rollback {name} {revision} --namespace {args.namespace}")
    return code


def before(api: KubeClient, clock: Clock, *, ignore_claims: bool) -> int:
    """Take the webhook configuration away. While claims stay, nothing is changed."""
    left = claims(api) if ignore_claims else _wait(lambda: claims(api), "ask for a share of a GPU", clock)
    if left and not ignore_claims:
        print("\n".join(["uninstall refused; nothing was changed", *_in_the_way(left)]))
        return NOT_FINE
    if holding := [each for each in left if each.allocated]:
        print(
            f"continuing although these claims still hold shares: {_named(holding)}; their pods will stay "
            "Terminating until you force-delete them"
        )
    gone = _delete(api, path(ADMISSION_V1, "mutatingwebhookconfigurations", CONFIGURATION))
    print(f"webhook configuration {CONFIGURATION} {'deleted' if gone else 'was gone already'}")
    return FINE


def _in_the_way(left: Sequence[Claim]) -> Iterator[str]:
    """Say of each kind of claim what it is and how to get rid of it."""
    holding, waiting = ([each for each in left if each.allocated is which] for which in (True, False))
    if holding:
        yield f"  these claims hold shares, and their pods cannot terminate without the enforcer: {_named(holding)}"
        yield (
            "    delete those pods and run the command again; or set uninstall.waitForClaims to false and "
            "force-delete the pods later"
        )
    if waiting:
        yield f"  these claims are not allocated yet and may get a GPU at any moment: {_named(waiting)}"
        yield "    delete their pods and the Deployment or Job that creates them, and run the command again; delete"
        yield "    a claim without a pod with: kubectl --namespace NAMESPACE delete resourceclaim NAME"


def after(api: KubeClient, namespace: str, clock: Clock) -> int:
    """Wait for the programs to end, then remove what they wrote."""
    left = _wait(lambda: [*programs(api, namespace), *uncleaned(api, namespace)], "still at work", clock)
    slices = api.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.driver={contract.DRIVER}")[0]
    counts = {
        "resource slices": [path(RESOURCE_V1, "resourceslices", each["metadata"]["name"]) for each in slices],
        "claim templates": [path(RESOURCE_V1, "resourceclaimtemplates", *place) for place in templates(api)],
        "Secrets": [path(CORE_V1, "secrets", name, namespace) for name in SECRETS],
    }
    for what, places in counts.items():
        print(f"{what} removed: {sum(_delete_unprotected(api, each, clock) for each in places)}")
    if left:
        print(f"{_named(left)} did not terminate; remove their ResourceSlices and files by hand")
    return NOT_FINE if left else FINE


def node(args: argparse.Namespace, clock: Clock) -> int:
    """Remove the files of this node once its enforcer has let go of them."""
    ends = clock.now() + clock.seconds
    while True:
        try:
            with lock.acquire_lock(args.state):
                for each in files(args):
                    print(f"removed {each}" if _remove(each) else f"was gone already: {each}")
        except ConfigError as error:
            if error.reason is not Reason.CONFLICT:
                raise
            if clock.now() >= ends:
                print(f"nothing was removed: {error.message}")
                return NOT_FINE
            clock.sleep(LOOK_SECONDS)
        else:
            return FINE


def files(args: argparse.Namespace) -> list[Path]:
    """Files of gpu-share on a node. Mounted folders stay, empty; the state too, without ``--remove-state``."""
    state = [args.state / SIMULATOR]
    if args.remove_state:
        state = sorted(args.state.iterdir())
    return [
        *sorted(args.cdi_root.glob(f"{contract.DRIVER}-*.json")),
        args.kubelet_root / "plugins_registry" / f"{contract.DRIVER}-reg.sock",
        args.kubelet_root / "plugins" / contract.DRIVER,
        *(sorted(args.run_folder.iterdir()) if args.run_folder.is_dir() else []),
        *state,
    ]


def claims(api: KubeClient) -> list[Claim]:
    """Every claim that asks for a device of our classes, or holds one of our driver."""
    found = api.listing(path(RESOURCE_V1, "resourceclaims"))
    return [_claim(each) for each in found if any(allocated(each)) or not CLASSES.isdisjoint(_classes(each))]


def _claim(item: Object) -> Claim:
    status = item.get("status") or {}
    owners = [each["name"] for each in item["metadata"].get("ownerReferences") or [] if each.get("kind") == "Pod"]
    users = [each["name"] for each in status.get("reservedFor") or [] if each.get("resource") == "pods"]
    return Claim(place=_place(item), pods=tuple(owners or users), allocated="allocation" in status)


def programs(api: KubeClient, namespace: str) -> list[str]:
    """``namespace/name`` of the pods of enforcers and certificates."""
    return [_place(each) for each in api.list(path(CORE_V1, "pods", namespace=namespace), labelSelector=PROGRAMS)[0]]


def uncleaned(api: KubeClient, namespace: str) -> list[str]:
    """What says that some node's files are not removed yet; nothing where no cleaner runs."""
    cleaner = find(api, path(APPS_V1, "daemonsets", CLEANER, namespace))
    if cleaner is None:
        return []
    status = cleaner["status"]
    if status.get("observedGeneration", 0) < cleaner["metadata"]["generation"]:
        return [f"{namespace}/{CLEANER}"]
    missing = status["desiredNumberScheduled"] - status.get("numberReady", 0)
    return [f"{namespace}/{CLEANER} (node {number + 1})" for number in range(missing)]


def templates(api: KubeClient) -> list[tuple[str, str]]:
    """(name, namespace) of the claim templates whose name is one that the webhook gives."""
    found = (each["metadata"] for each in api.listing(path(RESOURCE_V1, "resourceclaimtemplates")))
    return [(each["name"], each["namespace"]) for each in found if _ours(each["name"])]


def _ours(name: str) -> bool:
    digits = name.removeprefix(contract.TEMPLATE_PREFIX)
    return digits != name and len(digits) == HASH_DIGITS and set(digits) <= set("0123456789abcdef")


def _classes(claim: Object) -> Iterator[str]:
    for request in claim["spec"].get("devices", {}).get("requests") or []:
        for exact in [request.get("exactly") or {}, *(request.get("firstAvailable") or [])]:
            yield exact.get("deviceClassName", "")


def _wait(look: Callable[[], list[T]], what: str, clock: Clock) -> list[T]:
    """Look until nothing is left or time is up; returns what is left. Says so whenever it changes."""
    ends, shown = clock.now() + clock.seconds, -1
    while left := look():
        if len(left) != shown:
            print(f"waiting up to {max(0.0, ends - clock.now()):.0f} s: {_named(left)} {what}", flush=True)
            shown = len(left)
        if clock.now() >= ends:
            return left
        clock.sleep(LOOK_SECONDS)
    return []


def _delete(api: KubeClient, where: str) -> bool:
    try:
        api.delete(where)
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def _remove(file: Path) -> bool:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
        return True
    there = os.path.lexists(file)
    file.unlink(missing_ok=True)
    return there


def _named(names: Sequence[object]) -> str:
    return some(sorted(map(str, names)))


def _place(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _delete_unprotected(api: KubeClient, where: str, clock: Clock) -> bool:
    """Delete an object that a policy protected: the API server applies a deleted policy for a moment yet."""
    ends = clock.now() + POLICY_SECONDS
    while True:
        try:
            return _delete(api, where)
        except ClusterError as error:
            if "ValidatingAdmissionPolicy" not in error.message or clock.now() >= ends:
                raise
        clock.sleep(LOOK_SECONDS)
