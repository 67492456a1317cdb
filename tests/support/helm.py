"""The program helm, and the chart rendered by it."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.errors import GpuShareError
from gpushare_cli.check.installation import compared
from tests.integration.controlplane.manifests import where
from tests.support.need import missing

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "gpu-share"
INSTALL: Final = ROOT / "deploy" / "manifests" / "install.yaml"
SHIPPED: Final = ROOT / "gpushare_cli" / "check" / "shipped.json"
SYSTEM: Final = "gpu-share-system"
KUBERNETES: Final = "1.36.0"
"""What is rendered for where no cluster is asked: the oldest version served."""
HEADER: Final = """\
# gpu-share, rendered from deploy/helm/gpu-share with its default values by `make manifests`; change the chart instead.
#   kubectl apply --server-side -f install.yaml
# Needs Kubernetes 1.36 or newer. Other values, and what each is for: docs/operators/install.md.
"""


ORDER: Final = (
    "Namespace", "DeviceClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
)  # fmt: skip
"""What has to exist before the rest; Helm's own order differs between its versions."""


class HelmError(Exception):
    """Helm said no; the message is what it said."""


def find() -> Path | None:
    """``$HELM``, else the helm on PATH, else the one the test cluster was given or built."""
    if given := os.environ.get("HELM"):
        return Path(given)
    if on_path := shutil.which("helm"):
        return Path(on_path)
    return _of_the_test_cluster()


def _of_the_test_cluster() -> Path | None:
    binaries = importlib.import_module("tests.testbed.cluster.binaries")
    wanted = binaries.wanted
    groups = inspect.signature(wanted).parameters and binaries.Group
    for each in [one for group in groups for one in wanted(group)] if groups else wanted():
        if each.name == "helm":
            found: Path | None = binaries.find(each)
            return found
    return None


def need() -> Path:
    """Helm's path; where there is none the test is skipped, in CI failed."""
    found = find()
    if found is None:
        missing(
            "helm is in none of $HELM, PATH and the test cluster's cache: `make integration` builds it (or set HELM)"
        )
    return found


def run(*arguments: str, **environment: str) -> str:
    """Run helm; returns what it printed.

    Raises:
        HelmError: it failed.
    """
    command = [str(find() or "helm"), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment}
        )
    except OSError as error:
        raise HelmError(f"helm cannot be run: {error}; set HELM to it") from error
    if done.returncode:
        raise HelmError(done.stderr or done.stdout)
    return done.stdout


def template(*options: str, kubernetes: str = KUBERNETES) -> str:
    """The chart's text with these options (``--set a=b``, ``-f FILE``), hooks included."""
    return run("template", "gpu-share", str(CHART), "--namespace", SYSTEM, "--kube-version", kubernetes, *options)


FAST: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where PyYAML comes with libyaml."""


@cache
def objects(*options: str) -> tuple[dict[str, Any], ...]:
    """The same as objects. Shared between callers: look, do not change."""
    return tuple(each for each in yaml.load_all(template(*options), FAST) if each)


def manifests() -> str:
    """What ``deploy/manifests/install.yaml`` has to be: the default values, our namespace, no hooks."""
    text = template("--no-hooks", "--set", "namespace.create=true")
    documents = sorted((_normalized(each) for each in f"\n{text}".split("\n---\n") if each.strip()), key=_rank)
    return HEADER + "".join(f"---\n{each}\n" for each in documents)


def _normalized(document: str) -> str:
    lines = document.splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.startswith("# Source: "))


def _rank(document: str) -> tuple[int, str, str]:
    kind, name = (yaml.safe_load(document)[key] for key in ("kind", "metadata"))
    return ORDER.index(kind) if kind in ORDER else len(ORDER), kind, name["name"]


PLACEHOLDERS: Final = {
    "namespace-of-the-release": "@NAMESPACE@",
    "123456Mi": "@MIN_MEMORY@",
    "654321Mi": "@MAX_MEMORY@",
}
"""Values that stand in objects which `gpu-share check` compares, by what they are rendered with."""
VARIANTS: Final = ((), ("--set=tenantResize=true",), ("--set=enforcer.foreignClaims=report",))
"""Options that change such objects in another way."""


def shipped() -> str:
    """Return what ``gpushare_cli/check/shipped.json`` has to be: what is compared of each object, by API path."""
    stand_in = {text: name for name, text in PLACEHOLDERS.items()}
    common = (
        f"--namespace={stand_in['@NAMESPACE@']}", f"--set=webhook.minMemory={stand_in['@MIN_MEMORY@']}",
        f"--set=webhook.maxMemory={stand_in['@MAX_MEMORY@']}",
    )  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    for item in (each for variant in VARIANTS for each in objects("--no-hooks", *common, *variant)):
        if (parts := compared(item)) is not None:
            variants = found.setdefault(where(item), [])
            variants += [parts] if parts not in variants else []
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    return re.sub("|".join(PLACEHOLDERS), lambda each: PLACEHOLDERS[each[0]], text)


def main() -> int:
    """``python -m tests.support.helm``: write all that is rendered from the chart."""
    try:
        INSTALL.write_text(manifests())
        SHIPPED.write_text(shipped())
    except (HelmError, GpuShareError) as error:
        print(f"what the chart renders was not written: {error}")
        return 1
    print(f"wrote {INSTALL.relative_to(ROOT)} and {SHIPPED.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
