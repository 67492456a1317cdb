"""What goes into an image, and what a machine must have for a node: without building or starting anything."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.testbed.cluster import archive, images, node, packages
from tests.testbed.cluster.errors import BedError

DOCKERFILE = "FROM x AS build\nCOPY a.txt \\\n  lib ./\nFROM x AS simulator\nCOPY --from=build /made /made\nFROM x\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkout"
    (folder / "lib" / "__pycache__").mkdir(parents=True)
    (folder / "lib" / "b.py").write_text("b = 1\n")
    (folder / "lib" / "__pycache__" / "b.pyc").write_text("cache")
    (folder / "a.txt").write_text("a")
    (folder / "unrelated").write_text("u")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    monkeypatch.setattr(images, "CONTEXT", folder)
    return folder


def copied(target: Path) -> list[str]:
    target.mkdir()
    images._copy_context(images.CONTEXT, target)
    return sorted(str(file.relative_to(target)) for file in target.rglob("*") if file.is_file())


def test_only_what_the_dockerfile_copies_reaches_the_build(checkout: Path, tmp_path: Path) -> None:
    assert copied(tmp_path / "context") == ["Dockerfile", "a.txt", "lib/b.py"]


def test_an_archive_is_built_again_only_when_its_content_changes(checkout: Path, tmp_path: Path) -> None:
    digests = []
    for number, change in enumerate(("", "unrelated", "lib/b.py")):
        if change:
            (checkout / change).write_text("changed")
        copied(tmp_path / str(number))
        digests.append(images._digest(tmp_path / str(number), "gpu-share"))
    assert digests[0] == digests[1] != digests[2]


def test_a_target_the_dockerfile_has_not_is_no_image(checkout: Path) -> None:
    assert images.targets() == ["gpu-share", "simulator"]
    (checkout / "Dockerfile").write_text("FROM x\n")
    assert images.targets() == ["gpu-share"]
    assert (images.name("gpu-share"), images.name("simulator")) == ("gpu-share", "gpu-share-simulator")


def test_the_image_gets_the_machines_index_and_none_of_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_output = (
        "global.index-url='https://index.example/simple'\n:env:.find-links='/opt/wheels'\n:env:.cert='/x.pem'\n"
    )
    done = subprocess.CompletedProcess([], 0, stdout=pip_output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert images._pip_conf().splitlines() == [
        "[global]",
        f"cert = {images.CA_BUNDLE}",
        "index-url = https://index.example/simple",
    ]


def test_a_node_without_root_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "NEEDED", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BedError, match=r"needs root: .*`--control-plane-only`"):
        node.require_rights()


def test_a_node_without_iproute_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BedError, match=r"needs ip, unshare.*iproute2"):
        node.require_rights()


def test_nothing_is_fetched_where_all_of_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "_installed", lambda _: True)
    assert list((packages.tree(packages.NODE_PACKAGES) / "usr").iterdir()) == []


def test_a_hand_made_archive_holds_one_layer_and_every_name(tmp_path: Path) -> None:
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\necho busybox; echo sh\n")
    program.chmod(0o755)
    file = archive.busybox(tmp_path / "it.tar", program, {"a/pause:1": archive.FOREVER, "a/box:1": ()})
    with tarfile.open(file) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        assert len({each["Layers"][0] for each in manifest}) == 1
        assert [each["RepoTags"] for each in manifest] == [["docker.io/a/pause:1"], ["docker.io/a/box:1"]]
        with tarfile.open(fileobj=tar.extractfile(manifest[0]["Layers"][0])) as layer:
            assert layer.getmember("bin/sh").linkname == "busybox"
            assert layer.getmember("bin/busybox").isreg()
