from typing import Any

import pytest

from gpushare.framework_variables import SETTINGS, free, variables
from gpushare.memory_fraction import Reserve, budget

Object = dict[str, Any]
LIMITED = budget(4096, 81_008, Reserve(512, 4), context_mib=300)
WATCHED = budget(4096, 81_008, Reserve(512, 4), context_mib=300, watch_only=True)
USUAL = ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "CUDF_PANDAS_RMM_MODE")
ALL = ("jax", "torch")


def container(*names: str, **more: Any) -> Object:
    return {"name": "main", "env": [{"name": each, "value": ""} for each in names], **more}


def test_without_being_asked_for_three_variables_are_set() -> None:
    assert free([container("PATH")], ()) == USUAL
    assert variables(USUAL, LIMITED) == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUDF_PANDAS_RMM_MODE": "async",
    }
    assert variables(USUAL, WATCHED)["CUDF_PANDAS_RMM_MODE"] == "cuda"


def test_on_request_jax_gets_its_fraction_and_torch_where_nothing_limits() -> None:
    keys = free([container()], ALL)
    jax = {"XLA_PYTHON_CLIENT_MEM_FRACTION": LIMITED.of_total, "XLA_CLIENT_MEM_FRACTION": ""}
    assert variables(keys, LIMITED) == variables(USUAL, LIMITED) | jax
    assert variables(keys, WATCHED)["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.044242"


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_PREALLOCATE"),
        ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("CUDF_PANDAS_RMM_MODE", "CUDF_PANDAS_RMM_MODE"),
    ],
)
def test_what_one_of_the_containers_names_is_left_to_all_of_them(name: str, left: str) -> None:
    assert set(free([container(), container(name)], ALL)) == {each.key for each in SETTINGS} - {left}
    from_elsewhere = {"name": "b", "env": [{"name": name, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}
    assert left not in free([from_elsewhere], ALL)


def test_names_that_cannot_be_seen_are_left_alone() -> None:
    assert free([container(), container(envFrom=[{"configMapRef": {"name": "settings"}}])], ALL) == ()
    assert free([container(envFrom=[])], ()) == USUAL
    assert free([], ALL) == ()


def test_a_setting_says_all_the_names_it_sets() -> None:
    for each in SETTINGS:
        for mine in (LIMITED, WATCHED):
            assert set(each.values(mine)) in ({*each.names}, set())
