"""Inside the namespaces: start the node, run the cases one after the other, keep each as it ends."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.gpu.parcel import container_spec, node_settings, results, scene, truth
from tests.gpu.parcel.cases import Case, chosen
from tests.gpu.parcel.layout import BINARIES
from tests.gpu.parcel.node import ParcelNode
from tests.support.patience import patient

START_S: Final = 60.0
"""In which the node is Ready; otherwise nothing else is tried."""
KEEP_S: Final = 2.0
"""Logs of a pod go with it: so often they are kept."""
STATE: Final = (
    "kubectl get nodes,pods,daemonsets,jobs -A -o wide", "kubectl describe nodes",
    "kubectl get events -A --sort-by=.metadata.creationTimestamp -o wide",
    "kubectl get resourceslices,resourceclaims,deviceclasses -A -o yaml", "kubectl get pods -A -o yaml",
    "ctr --address=/run/containerd/containerd.sock --namespace=k8s.io containers list", "dmesg | tail -n 300",
    "ls -la /dev/ | grep nvidia; ls -laR /run/cdi /run/gpu-share; cat /run/cdi/*.json",
    "cat /proc/self/mountinfo /proc/self/cgroup; cat /sys/fs/cgroup/cgroup.subtree_control; ps -eo pid,ppid,user,args",
)  # fmt: skip
"""What is asked about the machine as it is, where something went wrong."""


class TimeUpError(Exception):
    """A case took longer than it may."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0: every case has passed."""
    began = time.monotonic()
    asked = _options(argv)
    store = results.Store(asked.out, asked.tar)
    cases = [each for each in chosen(asked.only) if asked.again or not store.passed(each.name)]
    threading.Thread(target=_keep_logs, args=(store, asked.run), daemon=True).start()
    try:
        with _time_limit(min(patient(START_S), asked.budget)):
            stage = _start(asked, store, began)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        said = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        print(f"the node did not start within {patient(START_S):.0f} s: {said[-3000:]}", flush=True)
        store.note(start=said[-6000:])
        _describe(store, "start", asked.run)
        return 1
    verdicts: list[str] = []
    for number, case in enumerate(cases, 1):
        kept = cases[-1].keeps_s if number < len(cases) else 0
        verdicts.append(_run(case, stage, store, asked.budget - (time.monotonic() - began) - kept))
        if verdicts[-1] != results.PASSED:
            _describe(store, case.name, asked.run)
            if case.needed:
                print(f"without {case.name} no other case can pass: all ends here", flush=True)
                break
    return 0 if verdicts == [results.PASSED] * len(cases) else 1


def _keep_logs(store: results.Store, run: Path) -> None:
    while True:
        store.take_logs(run)
        time.sleep(KEEP_S)


def _describe(store: results.Store, name: str, run: Path) -> None:
    """Keep what the cluster and the machine say now; nothing of it may hang."""
    admin = run / "cluster" / "kubeconfigs" / "admin.yaml"
    env = {**os.environ, "KUBECONFIG": str(admin)}
    with (store.folder / "logs" / f"state-after-{name}.txt").open("w") as out:
        for command in STATE:
            print(f"$ {command}", file=out, flush=True)
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=5,
                    check=False,
                )  # fmt: skip


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worker", description=__doc__)
    for name in ("--parcel", "--run", "--out", "--tar"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--backend", choices=("real", "fake"), required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args(argv)


def _start(asked: argparse.Namespace, store: results.Store, began: float) -> scene.Scene:
    frameworks, python = container_spec.interpreters()
    node_settings.programs(asked.parcel / BINARIES, python, frameworks)
    node_settings.write(asked.run / "node", asked.run / "cluster" / "pki", asked.parcel)
    node = ParcelNode.start(asked.run, asked.parcel)
    if asked.backend == "real":
        found = truth.ask(asked.backend)
        node.describe_gpus([found["uuid"]])
        store.note(gpu=found)
    ready = round(time.monotonic() - began, 1)
    print(f"the node is Ready after {ready} s", flush=True)
    store.note(node_ready_s=ready, kernel=os.uname().release, cpus=os.cpu_count())
    return scene.make(node, asked.backend, asked.run)


def _run(case: Case, stage: scene.Scene, store: results.Store, left: float) -> str:
    limit, stage.figures = min(patient(case.limit_s), left), {}
    if limit < case.limit_s / 3:
        verdict, said = results.NOT_RUN, f"{max(left, 0):.0f} s are left, it takes up to {case.limit_s:.0f}"
    began = time.monotonic()
    if limit >= case.limit_s / 3:
        try:
            with _time_limit(limit):
                verdict, said = results.PASSED, case.run(stage)
        except TimeUpError:
            verdict, said = results.FAILED, f"took longer than {limit:.0f} s\n{traceback.format_exc()[-3000:]}"
        except Exception as error:  # noqa: BLE001 - a case that fails in any way is a result; the others go on
            verdict, said = results.FAILED, f"{type(error).__name__}: {error}\n{traceback.format_exc()[-2000:]}"
    seconds = round(time.monotonic() - began, 1)
    print(f"{verdict:<8} {case.number:>2} {case.name:<20} {seconds:>6.1f} s  {said[:3000]}", flush=True)
    store.put(results.CaseResult(case=case.name, verdict=verdict, said=said, seconds=seconds, figures=stage.figures))
    return verdict


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeUpError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
