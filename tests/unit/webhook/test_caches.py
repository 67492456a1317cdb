"""What the webhook knows of namespaces and claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ClusterError, ConfigError, PolicyDenied
from webhook.caches import CLAIM, TEMPLATE, KnownClaims, NamespacePolicyCache, static_namespaces


def namespace(name: str = "team", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {f"gpu-share.io/{key}": text for key, text in annotations.items()}}
    }


def test_a_namespace_from_the_list_needs_no_call() -> None:
    known = NamespacePolicyCache()
    known.replace([namespace(**{"max-memory": "8Gi"})])

    assert known.policy("team").max_memory_mib == 8192


def test_events_change_what_is_known() -> None:
    known = NamespacePolicyCache()
    known.replace([namespace()])
    known.on_event("MODIFIED", namespace(**{"max-memory": "4Gi"}))
    assert known.policy("team").max_memory_mib == 4096

    known.on_event("DELETED", namespace())
    assert "team" not in known


def test_a_policy_with_a_mistake_refuses_and_says_where() -> None:
    known = NamespacePolicyCache()
    known.replace([namespace(**{"max-memory": "lots"})])
    for _ in range(2):
        with pytest.raises(PolicyDenied, match="max-memory") as caught:
            known.policy("team")
        assert caught.value.message.count(caught.value.field) == 1


def claim(name: str, device_class: str = "gpu-share.io", *, template: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": [{"exactly": {"deviceClassName": device_class}}]}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"spec": spec} if template else spec}


def names(own: KnownClaims, namespace: str) -> set[str]:
    known = own.own(namespace)
    return {name for name in (f"{kind}/{each}" for kind in (CLAIM, TEMPLATE) for each in "abct") if name in known}


def test_knows_claims_and_templates_of_our_class() -> None:
    own = KnownClaims()
    own.reset(CLAIM, [claim("a"), claim("b", "gpu.nvidia.com")])
    assert not own.synced
    own.reset(TEMPLATE, [claim("a", template=True)])

    assert own.synced
    assert names(own, "team") == {"claim/a", "template/a"}
    assert names(own, "other") == set()


def test_knows_claims_and_templates_of_other_gpu_drivers_whoever_made_them() -> None:
    known = KnownClaims()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    made = claim("made", "gpu.nvidia.com")
    made["metadata"]["ownerReferences"] = [owner]
    known.reset(CLAIM, [claim("own"), made, claim("nic", "nic.example.com")])
    known.reset(TEMPLATE, [claim("a", "mig.nvidia.com", template=True)])
    known.event(CLAIM, "ADDED", claim("later", "hami-core-gpu.project-hami.io"))
    found = {name for name in ("claim/own", "claim/made", "claim/nic", "template/a") if name in known.others("team")}
    assert found == {"claim/made", "template/a"}
    assert "claim/later" in known.others("team")
    assert "claim/made" not in known.others("elsewhere")
    known.event(CLAIM, "DELETED", made)
    assert "claim/made" not in known.others("team")


def test_lists_and_events_replace_what_was_known() -> None:
    own = KnownClaims()
    own.reset(CLAIM, [claim("a")])
    own.reset(TEMPLATE, [claim("t", template=True)])
    own.event(CLAIM, "ADDED", claim("b"))
    own.event(CLAIM, "DELETED", claim("a"))
    own.event(CLAIM, "ADDED", claim("c", "other"))
    assert names(own, "team") == {"claim/b", "template/t"}

    own.reset(CLAIM, [])
    assert names(own, "team") == {"template/t"}


def test_a_list_that_breaks_off_changes_nothing_and_passes_on_what_came() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield claim("b")
        raise ClusterError("gone", 410)

    own, seen = KnownClaims(), []
    own.reset(CLAIM, [claim("a")])
    with pytest.raises(ClusterError):
        for item in own.listing(CLAIM, broken()):
            seen.append(item["metadata"]["name"])  # noqa: PERF401 - it is the error half way that this is about

    assert seen == ["b"]
    assert names(own, "team") == {"claim/a"}


def test_what_cannot_be_a_name_is_not_known() -> None:
    own = KnownClaims()
    own.reset(CLAIM, [claim("a")])

    assert not [each for each in ("a", "claim/", "claim", "other/a", "claim/a/") if each in own.own("team")]


def test_of_claims_that_came_and_went_nothing_is_kept() -> None:
    own = KnownClaims()
    own.event(CLAIM, "ADDED", claim("a"))
    own.event(CLAIM, "MODIFIED", claim("a", "other"))

    assert (own._own, own._others) == ({CLAIM: {}, TEMPLATE: {}}, {CLAIM: {}, TEMPLATE: {}})


LABELLED = "{kind: Namespace, metadata: {name: %s, labels: {gpu-share.io/enabled: '%s'}}}"


@pytest.mark.parametrize(
    "text",
    [
        f"- {LABELLED % ('team', 'true')}\n- {LABELLED % ('other', 'false')}",
        f"---\n{LABELLED % ('team', 'true')}\n---\n{LABELLED % ('other', 'no')}\n---\n",
        f"{{kind: List, items: [{LABELLED % ('team', 'true')}]}}",
        '{"kind": "Namespace", "metadata": {"name": "team", "labels": {"gpu-share.io/enabled": "true"}}}',
    ],
)
def test_reads_namespaces_from_a_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    known = static_namespaces(tmp_path / "file")

    assert known.synced
    assert "team" in known
    assert "other" not in known


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{kind: Pod}",
        "{kind: Namespace, metadata: {name: off}}",
        "{kind: Namespace, metadata: null}",
        "a: [",
        "\x00",
        "when: 2026-99-99",
        "!!bool x",
        "!!int ''",
        "!!timestamp x",
        "a: 1" + ":1" * 200 + ".0",
        "{kind: List, items: 5}",
        "{kind: Namespace, metadata: {name: a, labels: [1]}}",
        pytest.param("[" * 1_000, id="deep"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)

    with pytest.raises(ConfigError, match="--namespaces"):
        static_namespaces(tmp_path / "file")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory$"):
        static_namespaces(tmp_path / "none")
