"""Asking a kubelet, played by a real gRPC server on a socket, what device plugins offer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.dra.podresources import SOCKET, allocatable
from gpushare.errors import KubeletError
from tests.support.podresources import Offered, pod_resources

pytestmark = pytest.mark.node


@pytest.fixture(name="kubelet")
def _kubelet(tmp_path: Path) -> Iterator[Offered]:
    with pod_resources(tmp_path) as offered:
        yield offered


def test_what_plugins_offer_is_read(kubelet: Offered, tmp_path: Path) -> None:
    assert allocatable(tmp_path) == []
    kubelet += [("nvidia.com/gpu", [f"GPU-{number}" for number in range(50)] * 400), ("example.com/nic", [])]
    assert [(name, len(ids)) for name, ids in allocatable(tmp_path)] == [
        ("nvidia.com/gpu", 20000),
        ("example.com/nic", 0),
    ]


def test_a_kubelet_that_refuses_or_is_not_there_is_reported(kubelet: Offered, tmp_path: Path) -> None:
    kubelet += [("nvidia.com/gpu", [""])]
    with pytest.raises(KubeletError, match=r"does not answer on .*: still starting"):
        allocatable(tmp_path)
    with pytest.raises(KubeletError, match=r"does not exist; .*--kubelet-root \(chart value kubeletRoot\)"):
        allocatable(tmp_path / "elsewhere")
    assert allocatable(tmp_path / "elsewhere", optional=True) == ()


def test_a_socket_that_nobody_serves_is_reported(tmp_path: Path) -> None:
    (tmp_path / SOCKET).parent.mkdir()
    (tmp_path / SOCKET).touch()
    with pytest.raises(KubeletError, match="does not answer"):
        allocatable(tmp_path)
