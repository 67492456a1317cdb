"""What an environment says of its process's limit, in every form a tenant can give it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.limits.environ_limits import Said, said

UUID = "GPU-2a100000-0000-4000-8000-000000000000"


def environ(limit: str | None, visible: str | None = UUID) -> bytes:
    entries = {"PATH": "/bin", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit, "CUDA_VISIBLE_DEVICES": visible}
    return b"".join(f"{name}={value}\0".encode() for name, value in entries.items() if value is not None)


@pytest.mark.parametrize(
    ("limit", "visible", "found"),
    [
        ("0=4096M", UUID, Said(4096)),
        ("0=4G", UUID, Said(4096)),
        ("0=512MB", UUID, Said(512)),
        (f"{UUID}=4096M", UUID, Said(4096)),
        ("GPU-2a1=4096M", UUID, Said(4096)),
        ("0=4096M", None, Said(4096)),
        (None, UUID, Said()),
        ("", UUID, Said()),
        ("0=", UUID, Said()),
        ("0=4096", UUID, Said()),
        ("0=ten", UUID, Said()),
        ("0=4096M,1=9999M", UUID, Said(4096, "1")),
        ("1=9999M", UUID, Said(None, "1")),
        ("0=4096M,1=9999M", f"{UUID},GPU-x", Said(9999)),
        ("0=4096M,GPU-ffff=1M", UUID, Said(4096, "GPU-ffff")),
        ("0=4096M,=1M", UUID, Said(4096, "")),
        ("0=1M,0=9999M", UUID, Said(9999)),
    ],
)
def test_a_limit_is_read_as_mps_reads_it(limit: str | None, visible: str | None, found: Said) -> None:
    assert said(environ(limit, visible)) == found


def test_of_two_values_the_first_counts() -> None:
    assert said(environ("0=4096M") + environ("0=1M")) == Said(4096)


@given(st.binary(max_size=200))
def test_nothing_a_tenant_writes_there_is_an_error(data: bytes) -> None:
    said(data)
    said(b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + data)
