"""The chart's values, as variables."""

import pytest

from gpushare.errors import ConfigError
from webhook.mutation.settings import Settings, image


def test_nothing_set_is_the_defaults() -> None:
    assert Settings.from_environment({"PATH": "/bin", "GPU_SHARE_IMAGE": ""}) == Settings()


def test_every_variable_is_read() -> None:
    settings = Settings.from_environment(
        {
            "GPU_SHARE_IMAGE": "mirror.example/gpu-share:1",
            "GPU_SHARE_IMAGE_PULL_POLICY": "Always",
            "GPU_SHARE_MIN_MEMORY": "256Mi",
            "GPU_SHARE_MAX_MEMORY": "80Gi",
            "GPU_SHARE_TOLERATIONS": '[{"key": "gpu"}]',
            "GPU_SHARE_RUNTIME_CLASS": "nvidia",
            "GPU_SHARE_ROOT_TENANTS": "refuse",
            "GPU_SHARE_ACROSS_NODES": "binpack",
            "GPU_SHARE_SEVERAL_GPUS": "refuse",
            "GPU_SHARE_COMPUTE_OVERCOMMIT": "1.5",
            "GPU_SHARE_DEFAULT_COMPUTE": "memory",
            "GPU_SHARE_SIDECAR_REQUESTS": '{"cpu": "5m"}',
            "GPU_SHARE_SIDECAR_LIMITS": '{"cpu": "50m"}',
            "GPU_SHARE_SCHEDULER_NAMES": "default-scheduler,packing",
            "GPU_SHARE_LOG_LEVEL": "debug",
        }
    )
    assert settings == Settings(
        image="mirror.example/gpu-share:1",
        image_pull_policy="Always",
        min_memory_mib=256,
        max_memory_mib=80 * 1024,
        tolerations=({"key": "gpu"},),
        runtime_class="nvidia",
        root_tenants="refuse",
        across_nodes="binpack",
        several_gpus="refuse",
        scheduler_names=("default-scheduler", "packing"),
        most_compute=150,
        default_compute="memory",
        sidecar_requests={"cpu": "5m"},
        sidecar_limits={"cpu": "50m"},
        log_level="debug",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPU_SHARE_IMAGE", "a b"),
        ("GPU_SHARE_IMAGE", "gpu-share:0.1.0 "),
        ("GPU_SHARE_MIN_MEMORY", "512"),
        ("GPU_SHARE_MAX_MEMORY", "much"),
        ("GPU_SHARE_TOLERATIONS", "{}"),
        ("GPU_SHARE_TOLERATIONS", "[1]"),
        ("GPU_SHARE_TOLERATIONS", "nvidia.com/gpu"),
        ("GPU_SHARE_ROOT_TENANTS", "yes"),
        ("GPU_SHARE_DEFAULT_COMPUTE", "half"),
        ("GPU_SHARE_DEFAULT_COMPUTE", "0%"),
        ("GPU_SHARE_ACROSS_NODES", "pack"),
        ("GPU_SHARE_SIDECAR_LIMITS", '{"cpu": 1}'),
        ("GPU_SHARE_SIDECAR_REQUESTS", "[]"),
        ("GPU_SHARE_IMAGE_PULL_POLICY", "always"),
        ("GPU_SHARE_LOG_LEVEL", "loud"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    "text",
    [
        "gpu-share:0.1.0", "a", "localhost:5000/a", "registry.example/team/gpu-share", "[::1]:5000/a__b/c-d:1_2.3",
        "ghcr.io/a/b@sha256:" + "0" * 64, "Registry.example/a:v1@sha256:" + "f" * 64,
    ],
)  # fmt: skip
def test_an_image_is_read_as_container_runtimes_read_it(text: str) -> None:
    assert image("GPU_SHARE_IMAGE", text) == text
