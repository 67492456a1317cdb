"""Finding and building the servers, with a stand-in for Go: what a newcomer's machine may be like."""

import multiprocessing
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.testbed.cluster import binaries, build, versions
from tests.testbed.cluster.errors import BedError, MissingBinariesError
from tests.testbed.cluster.node import require_rights

KUBERNETES_MODULES = ("kubernetes", "kubernetes-node", "kubernetes-parcel")
OLDEST_MODULES = (f"kubernetes-{versions.OLDEST}", f"kubernetes-node-{versions.OLDEST}")
FAKE_GO = """#!{python}
import os, pathlib, sys, time
if sys.argv[1] == "env":
    print("{version}")
    sys.exit()
target = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
with open("{calls}", "a") as calls:
    calls.write(target.name.split(".")[0] + " " + sys.argv[-1] + "\\n")
target.write_text("half")
time.sleep({seconds})
if "{fail}" in target.name and "{fail}":
    sys.exit("undefined: nonsense")
target.write_text("whole")
"""


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing built and nothing installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(binaries.ASSETS_VARIABLE, raising=False)
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    monkeypatch.setattr(build, "USUAL_GO", str(tmp_path / "no-go"))


def fake_go(folder: Path, *, version: str = "go1.26.8", seconds: float = 0, fail: str = "") -> Path:
    calls = folder / "calls"
    text = FAKE_GO.format(python=sys.executable, version=version, calls=calls, seconds=seconds, fail=fail)
    executable(folder / "bin" / "go", text)
    return calls


def executable(where: Path, text: str) -> None:
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(text)
    where.chmod(where.stat().st_mode | stat.S_IXUSR)


def test_without_go_the_message_says_what_to_install() -> None:
    with pytest.raises(BedError, match=r"there is no Go: install Go 1\.26 or newer .*KUBEBUILDER_ASSETS"):
        build.build_missing()


def test_a_go_that_is_too_old_is_named(tmp_path: Path) -> None:
    fake_go(tmp_path, version="go1.25.9")
    with pytest.raises(BedError, match=r"bin/go is go1\.25\.9, too old"):
        build.build_missing()


def test_everything_is_built_once_with_a_line_for_each(tmp_path: Path) -> None:
    calls = fake_go(tmp_path)
    lines: list[str] = []
    build.build_missing(lines.append)
    build.build_missing(lines.append)
    assert calls.read_text().splitlines() == [
        *(f"{name} k8s.io/kubernetes/cmd/{name}" for name in binaries.KUBERNETES_NAMES),
        "etcd go.etcd.io/etcd/server/v3",
    ]
    assert lines[0] == "building kube-apiserver (1/4) ..."
    assert re.fullmatch(r"built etcd \(4/4\) in \d+ s", lines[-1])
    assert {path.read_text() for path in binaries.find_all().values()} == {"whole"}


def test_progress_is_shown_while_a_long_build_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path, seconds=0.3)
    monkeypatch.setattr(build, "PROGRESS_SECONDS", 0.1)
    lines: list[str] = []
    build.build_missing(lines.append)
    assert any(re.fullmatch(r"building etcd \(4/4\) \.\.\. \d+ s", line) for line in lines)


def test_a_failed_build_leaves_no_half_binary_and_says_why(tmp_path: Path) -> None:
    fake_go(tmp_path, fail="kube-scheduler")
    with pytest.raises(BedError, match=r"kube-scheduler failed .*\n.*undefined: nonsense"):
        build.build_missing()
    assert [path.name for path in binaries.cache_root().rglob("kube-*")] == ["kube-apiserver"]
    fake_go(tmp_path)
    lines: list[str] = []
    build.build_missing(lines.append)
    assert lines[0] == "building kube-scheduler (1/3) ..."


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    fake_go(tmp_path)
    leftover = binaries.wanted()[0].cache.with_name("kube-apiserver.999.tmp")
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half")
    build.build_missing()
    assert not leftover.exists()


def test_two_builds_at_once_share_the_work(tmp_path: Path) -> None:
    calls = fake_go(tmp_path, seconds=0.2)
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=build.build_missing) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert [each.exitcode for each in both] == [0, 0]
    assert len(calls.read_text().splitlines()) == 4


def test_missing_binaries_are_named_with_the_command_that_builds_them(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "etcd", "#!/bin/sh\necho etcd Version: 3.5.16\n")
    with pytest.raises(
        MissingBinariesError, match=r"kube-apiserver, kube-scheduler, kube-.* not found .*`make integration`"
    ):
        binaries.find_all()
    with pytest.raises(MissingBinariesError, match=r"kubelet.* not found .*`make e2e`"):
        binaries.find_all(binaries.Group.NODE)


@pytest.mark.parametrize(
    ("printed", "taken"), [("Kubernetes v1.37.0", True), ("Kubernetes v1.36.4", False), ("", False)]
)
def test_a_server_on_path_is_taken_only_in_the_right_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    taken: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    given = tmp_path / "bin" / "kube-apiserver"
    executable(given, f"#!/bin/sh\necho '{printed}'\n")
    assert binaries.find(binaries.wanted()[0]) == (given if taken else None)
    monkeypatch.setenv(versions.VARIABLE, "1.36")
    assert binaries.find(binaries.wanted()[0]) == (given if "1.36" in printed else None)


def test_a_wrong_version_in_the_given_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "assets" / "kube-apiserver", "#!/bin/sh\necho Kubernetes v1.30.0\n")
    monkeypatch.setenv(binaries.ASSETS_VARIABLE, str(tmp_path / "assets"))
    with pytest.raises(BedError, match=r"'Kubernetes v1\.30\.0'; needed is Kubernetes 1\.37\.x"):
        binaries.find(binaries.wanted()[0])


def test_the_build_uses_the_go_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    assert build._env() == {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def test_what_a_node_needs_is_a_group_of_its_own(tmp_path: Path) -> None:
    calls = fake_go(tmp_path)
    build.build_missing(lambda _: None)
    assert "kubelet" not in calls.read_text()
    build.build_missing(lambda _: None, tuple(binaries.Group))
    assert [line.split()[0] for line in calls.read_text().splitlines()[4:]] == [
        "kubelet", "kube-proxy", "kubectl", "containerd", "containerd-shim-runc-v2", "ctr",
        "kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "helm", "promtool", "prometheus",
        "kubernetes-parcel", "containerd-parcel",
    ]  # fmt: skip
    assert set(binaries.find_all(binaries.Group.NODE)) >= {"kubelet", "containerd"}


@pytest.mark.parametrize(
    ("minor", "modules"), [(versions.NEWEST, KUBERNETES_MODULES), (versions.OLDEST, OLDEST_MODULES)]
)
def test_all_modules_of_one_kubernetes_pin_the_same_versions(minor: str, modules: tuple[str, ...]) -> None:
    """They are apart only so that a change of one leaves the cached binaries of the others alone."""
    pinned = [set(re.findall(r"^\s+(k8s\.io/\S+ => .*)$", _go_mod(name), re.MULTILINE)) for name in modules]
    assert all(each == pinned[0] != set() for each in pinned)
    version = versions.VERSIONS[minor]
    assert all(re.search(rf"k8s\.io/kubernetes v{version}\s", _go_mod(name)) for name in modules)


@pytest.mark.parametrize("minor", list(versions.VERSIONS))
def test_every_version_has_a_module_that_pins_it_alone(minor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, minor)
    version, text = versions.VERSIONS[minor], _go_mod(versions.module())
    assert version.startswith(f"{minor}.")
    assert f"k8s.io/kubernetes v{version} " in text
    staged = set(re.findall(r"^\s+k8s\.io/\S+ => \S+ v(\S+)$", text, re.MULTILINE))
    assert staged == {f"0.{version.partition('.')[2]}"}


def test_an_older_control_plane_is_built_beside_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_go(tmp_path)
    build.build_missing(lambda _: None)
    newest = binaries.find_all()
    monkeypatch.setenv(versions.VARIABLE, versions.OLDEST)
    with pytest.raises(MissingBinariesError):
        binaries.find_all()
    build.build_missing(lambda _: None)
    older = binaries.find_all()
    again = [line.split()[0] for line in calls.read_text().splitlines()[len(newest) :]]
    assert again == list(binaries.KUBERNETES_NAMES)
    assert {name for name in older if older[name] != newest[name]} == set(again), "etcd is the same"


def test_servers_get_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, versions.OLDEST)
    go = tmp_path / "bin" / "go"
    executable(go, f"#!/bin/sh\n[ $1 = env ] && echo go1.26.8 && exit\necho $5 >> {tmp_path}/flags\n: > $7\n")
    build.build_missing(lambda _: None)
    flag_lines = (tmp_path / "flags").read_text().splitlines()
    major, minor = versions.OLDEST.split(".")
    assert len(flag_lines) == 4
    for flags in flag_lines[:3]:
        assert f".gitVersion=v{versions.VERSIONS[versions.OLDEST]} " in flags
        assert (f".gitMajor={major} " in flags, flags.endswith(f".gitMinor={minor}")) == (True, True)


def test_a_version_that_is_not_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, "1.30")
    with pytest.raises(BedError, match=r"GPU_SHARE_KUBERNETES is '1\.30'; it has to be one of 1\.37, 1\.36"):
        binaries.wanted()


def test_an_older_control_plane_gets_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.VARIABLE, versions.OLDEST)
    with pytest.raises(BedError, match=rf"a real node is Kubernetes {versions.NEWEST} here; {versions.OLDEST} is"):
        require_rights()


def _go_mod(name: str) -> str:
    return (binaries.MODULES / name / "go.mod").read_text()
