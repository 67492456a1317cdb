"""Who brings a /dev/shm of its own, and which users may open the file of an MPS server."""

from typing import Any

import pytest

from gpushare.shared_memory import barred, brings_memory, user_of


@pytest.mark.parametrize(
    ("user", "files", "expected"),
    [
        (1000, [], False),
        (1000, [(0, 0o600)], True),
        (1000, [(0, 0o644)], True),
        (1000, [(0, 0o660)], True),
        (1000, [(0, 0o666)], False),
        (1000, [(1000, 0o600)], False),
        (1000, [(0, 0o600), (1000, 0o600)], False),
        (1000, [(1000, 0o466)], True),
        (0, [(1000, 0o600)], False),
    ],
)
def test_owner_and_mode_decide_who_may_open_a_file(user: int, files: list[tuple[int, int]], expected: object) -> None:
    assert barred(user, files) is expected


@pytest.mark.parametrize(
    ("pod", "container", "user"),
    [
        ({}, {}, None),
        ({"spec": {"securityContext": {"runAsUser": 7}}}, {}, 7),
        ({"spec": {"securityContext": {"runAsUser": 7}}}, {"securityContext": {"runAsUser": 0}}, 0),
        ({"spec": None}, {"securityContext": {"runAsUser": "root"}}, None),
    ],
)
def test_the_container_s_own_user_wins_over_the_pod_s(pod: Any, container: Any, user: int | None) -> None:
    assert user_of(pod, container) == user


@pytest.mark.parametrize("mounts", [None, "x", [None], [{}], [{"mountPath": "/dev/shm/x"}], [{"mountPath": "/dev"}]])
def test_no_other_mount_is_a_dev_shm(mounts: Any) -> None:
    assert not brings_memory({"volumeMounts": mounts})
