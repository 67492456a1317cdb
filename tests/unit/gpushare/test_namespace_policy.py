"""What an operator may write on a namespace, and what is refused."""

from typing import Any

import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason

TWO_GIB = {"default_memory_mib": 2048, "max_memory_mib": 2048}
READ: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({"example.com/gpu-share.io": "x", "kubernetes.io/metadata.name": "y"}, {}),
    ({"gpu-share.io/default-memory": "2Gi"}, {"default_memory_mib": 2048}),
    ({"gpu-share.io/default-compute": "20%"}, {"default_compute": 20}),
    ({"gpu-share.io/default-compute": "memory"}, {"default_compute": "memory"}),
    ({"gpu-share.io/default-compute": "none"}, {"default_compute": "none"}),
    ({"gpu-share.io/default-compute": "none", "gpu-share.io/max-compute": "50%"},
     {"default_compute": "none", "max_compute": 50}),
    ({"gpu-share.io/max-memory": "8G"}, {"max_memory_mib": 7630}),
    ({"gpu-share.io/max-compute": "50"}, {"max_compute": 50}),
    ({"gpu-share.io/default-memory": "2Gi", "gpu-share.io/max-memory": "2Gi"}, TWO_GIB),
    ({"gpu-share.io/on-exceed": "kill-container", "gpu-share.io/grace-period": "20s"}, {}),
    ({"gpu-share.io/own-claims": "any"}, {"any_claims": True}),
    ({"gpu-share.io/frameworks": "none"}, {"frameworks": None}),
    ({"gpu-share.io/frameworks": "jax, torch,jax"}, {"frameworks": ("jax", "torch")}),
]  # fmt: skip
REFUSED = [
    ({"gpu-share.io/max-memroy": "4Gi"}, "did you mean gpu-share.io/max-memory"),
    ({"gpu-share.io/whatever-it-is": "4Gi"}, "is not a namespace annotation"),
    ({"memory.gpu-share.io/model": "4Gi"}, "is not a namespace annotation"),
    ({"gpu-share.io/enabled": "true"}, "is a namespace label, not an annotation; move it to metadata.labels"),
    ({"gpu-share.io/managed": "true"}, "is a pod label that the webhook sets; remove it"),
    ({"gpu-share.io/max-memory": "4096"}, "did you mean 4096Mi"),
    ({"gpu-share.io/max-memory": "0"}, "write for example 4Gi"),
    ({"gpu-share.io/tolerance": "0"}, "write for example 4Gi"),
    ({"gpu-share.io/max-memory": ""}, "is not a quantity"),
    ({"gpu-share.io/max-compute": "0"}, "1% to 100%"),
    ({"gpu-share.io/default-memory": "4Gi", "gpu-share.io/max-memory": "2Gi"}, "4Gi is above"),
    ({"gpu-share.io/default-compute": "40%", "gpu-share.io/max-compute": "20%"}, "40% is above"),
    ({"gpu-share.io/default-compute": "memory", "gpu-share.io/max-compute": "20%"}, "remove one of the two"),
    ({"gpu-share.io/default-compute": "Memory"}, 'is not "none", "memory" or a percentage'),
    ({"gpu-share.io/default-compute": "0%"}, "write for example 25%"),
    ({"gpu-share.io/on-exceed": "Kill"}, '\'Kill\' is not "kill" or "kill-container" or "warn"; write "kill"'),
    ({"gpu-share.io/grace-period": "5"}, "is not a duration"),
    ({"gpu-share.io/tolerance": "5"}, "did you mean 5Mi"),
    ({"gpu-share.io/tolerance": "0%"}, "1% to 100%"),
    ({"gpu-share.io/frameworks": "jax, none"}, "'none' is unknown; write any of jax, sglang"),
    ({"gpu-share.io/frameworks": "JAX"}, "'JAX' is unknown; write any of jax, sglang"),
    ({"gpu-share.io/frameworks": ""}, "is not a comma-separated list"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "expected"), READ, ids=str)
def test_annotations_are_read(annotations: dict[str, str], expected: dict[str, Any]) -> None:
    assert NamespacePolicy.from_annotations(annotations) == NamespacePolicy(**expected)


def test_no_annotations_at_all_is_no_policy() -> None:
    assert NamespacePolicy.from_annotations(None) == NamespacePolicy()


@pytest.mark.parametrize(("annotations", "message"), REFUSED, ids=str)
def test_a_mistake_is_refused_with_the_way_out(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyDenied) as error:
        NamespacePolicy.from_annotations(annotations)
    assert message in error.value.message
    assert error.value.reason is Reason.INVALID_NAMESPACE
    assert error.value.field.startswith("namespace metadata.annotations[")


@pytest.mark.parametrize(
    ("chart", "own", "most", "reserved", "by_memory"),
    [
        ("none", None, None, None, False),
        ("none", None, 50, 50, False),
        (30, None, None, 30, False),
        (30, None, 20, 20, False),
        (30, 10, 20, 10, False),
        (30, "none", None, None, False),
        (30, "none", 20, 20, False),
        ("memory", None, None, None, True),
        ("memory", None, 50, 50, True),
        ("memory", 10, None, 10, False),
        ("memory", "none", None, None, False),
        (30, "memory", None, None, True),
    ],
)
def test_the_namespace_decides_before_the_chart_and_the_maximum_holds(
    chart: int | str, own: int | str | None, most: int | None, reserved: int | None, *, by_memory: bool
) -> None:
    policy = NamespacePolicy(default_compute=own, max_compute=most)
    assert (policy.compute_by_default(chart), policy.caps_by_memory(chart)) == (reserved, by_memory)
