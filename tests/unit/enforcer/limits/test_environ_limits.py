"""What an environment says of its process's limit, in every form a tenant can give it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.limits.environ_limits import EnvironLimit, parse_environ

UUID = "GPU-2a100000-0000-4000-8000-000000000000"


def environ(limit: str | None, visible: str | None = UUID) -> bytes:
    entries = {"PATH": "/bin", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit, "CUDA_VISIBLE_DEVICES": visible}
    return b"".join(f"{name}={value}\0".encode() for name, value in entries.items() if value is not None)


@pytest.mark.parametrize(
    ("limit", "visible", "found"),
    [
        ("0=4096M", UUID, EnvironLimit(4096)),
        ("0=4G", UUID, EnvironLimit(4096)),
        ("0=512MB", UUID, EnvironLimit(512)),
        (f"{UUID}=4096M", UUID, EnvironLimit(4096)),
        ("GPU-2a1=4096M", UUID, EnvironLimit(4096)),
        ("0=4096M", None, EnvironLimit(4096)),
        (None, UUID, EnvironLimit()),
        ("", UUID, EnvironLimit()),
        ("0=", UUID, EnvironLimit()),
        ("0=4096", UUID, EnvironLimit()),
        ("0=ten", UUID, EnvironLimit()),
        ("0=4096M,1=9999M", UUID, EnvironLimit(4096, "1")),
        ("1=9999M", UUID, EnvironLimit(None, "1")),
        ("0=4096M,1=9999M", f"{UUID},GPU-x", EnvironLimit(9999)),
        ("0=4096M,GPU-ffff=1M", UUID, EnvironLimit(4096, "GPU-ffff")),
        ("0=4096M,=1M", UUID, EnvironLimit(4096, "")),
        ("0=1M,0=9999M", UUID, EnvironLimit(9999)),
    ],
)
def test_a_limit_is_read_as_mps_reads_it(limit: str | None, visible: str | None, found: EnvironLimit) -> None:
    assert parse_environ(environ(limit, visible)) == found


def test_of_two_values_the_first_counts() -> None:
    assert parse_environ(environ("0=4096M") + environ("0=1M")) == EnvironLimit(4096)


@given(st.binary(max_size=200))
def test_nothing_a_tenant_writes_there_is_an_error(data: bytes) -> None:
    parse_environ(data)
    parse_environ(b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + data)
