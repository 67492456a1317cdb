import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from gpushare_cli.inject.command import rewritten
from gpushare_cli.inject.manifest import split
from gpushare_cli.inject.rewrite import Result, stream, with_templates
from gpushare_cli.main import build_parser, main
from tests.unit.gpushare_cli.injecting import NAMESPACE, Run
from tests.unit.gpushare_cli.streams import FOREIGN, STREAMS, WRAPPED, pod, text, wrapped

CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")
TOGETHER = {"gpu-share.io/same-gpu": "true"}


def inject_twice(source: str) -> tuple[list[Result], list[Result]]:
    once = build(source)
    return once, build(stream(once))


def build(source: str) -> list[Result]:
    options = build_parser("inject").parse_args(["inject", "-f", "-"])
    return list(with_templates(rewritten(split(source), options)))


def follow(value: Any, kind: str) -> Any:
    for step in WRAPPED[kind][1]:
        value = value[step]
    return value


@pytest.mark.parametrize("kind", sorted(WRAPPED))
@pytest.mark.parametrize("as_json", [False, True])
def test_the_pod_inside_every_kind_of_workload_is_rewritten(inject: Run, kind: str, as_json: bool) -> None:  # noqa: FBT001
    code, out, _ = inject(text(wrapped(kind, pod()), as_json=as_json))
    assert code == 0
    inside = follow(yaml.safe_load(out), kind)
    assert [claim["name"] for claim in inside["spec"]["resourceClaims"]] == ["gpu-share"]
    assert out.startswith("{") is as_json


def test_items_of_a_list_are_rewritten_where_they_stand(inject: Run) -> None:
    items = [wrapped("Job", pod(memory=None)), wrapped("Pod", pod()), {"apiVersion": "v1", "kind": "Service"}]
    code, out, _ = inject(text({"apiVersion": "v1", "kind": "List", "items": items}))
    after = yaml.safe_load(out)["items"]
    assert (code, after[0], after[2]) == (0, items[0], items[2])
    assert after[1]["spec"]["resourceClaims"]


def test_items_of_a_typed_list_need_not_say_their_kind(inject: Run) -> None:
    item = wrapped("Pod", pod())
    del item["kind"], item["apiVersion"]
    code, out, _ = inject(text({"apiVersion": "v1", "kind": "PodList", "items": [item]}))
    assert code == 0
    assert yaml.safe_load(out)["items"][0]["spec"]["resourceClaims"]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_no_business_of_ours_comes_out_byte_for_byte(inject: Run, foreign: str) -> None:
    source = f"{foreign}---\n{text(wrapped('Pod', pod()))}--- # last\n{foreign}"
    code, out, _ = inject(source)
    assert code == 0
    assert out.startswith(foreign + "---\n")
    assert out.endswith("--- # last\n" + foreign)


@pytest.mark.parametrize(
    "source", ["", "\n", "---\n", "---\n---\n\n", "a: 1\r\n---\r\nb: 2", "\ufeffa: 1\n", "kind: Pod"]
)
def test_streams_without_a_sharing_pod_come_out_byte_for_byte(inject: Run, source: str) -> None:
    assert inject(source)[:2] == (0, source)


def test_comments_separators_and_the_order_of_keys_are_kept(inject: Run) -> None:
    source = "# head\n---\n# why\n" + text(wrapped("Deployment", pod()))
    code, out, _ = inject(source)
    assert code == 0
    assert out.startswith(
        "# head\n---\n# why\napiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    metadata:"
    )


def test_line_ends_of_windows_and_a_byte_order_mark_are_kept(inject: Run) -> None:
    source = "\ufeff" + text(wrapped("Pod", pod())).replace("\n", "\r\n")
    code, out, _ = inject(source)
    assert code == 0
    assert out.startswith("\ufeffapiVersion")
    assert "resourceClaims:" in out


@given(STREAMS)
@settings(deadline=None, max_examples=60)
def test_injecting_the_output_again_changes_nothing(source: str) -> None:
    once, again = inject_twice(source)
    assert stream(again) == stream(once)
    assert not any(result.rewritten for result in again)


@given(STREAMS)
@settings(deadline=None, max_examples=60)
def test_number_and_order_of_documents_are_kept(source: str) -> None:
    after = [(d.top("kind"), d.json) for d in split(stream(build(source)))]
    kept = [one for one in after if one[0] != "ResourceClaimTemplate"]
    assert kept == [(d.top("kind"), d.json) for d in split(source)]


def test_a_namespace_in_the_stream_completes_its_pods_wherever_it_stands(inject: Run) -> None:
    source = text(wrapped("Pod", pod(memory=None, **TOGETHER), "a")) + "---\n" + NAMESPACE % ("default-memory", "2Gi")
    code, out, _ = inject(source)
    assert code == 0
    assert "0=2048M" in out


@pytest.mark.parametrize(("labels", "said"), [("{}", True), ("{gpu-share.io/enabled: 'true'}", False)])
def test_a_namespace_that_did_not_opt_in_is_pointed_out(inject: Run, labels: str, said: bool) -> None:  # noqa: FBT001
    source = f"{NAMESPACE % ('max-memory', '8Gi')}  labels: {labels}\n---\n{text(wrapped('Pod', pod(), namespace='a'))}"
    code, out, err = inject(source)
    assert code == 0
    assert "resourceClaims" in out
    assert ('namespace a lacks the label gpu-share.io/enabled: "true"' in err) is said


@pytest.mark.parametrize("kind", ["v1\nkind: Namespace", *(f"resource.k8s.io/v1\nkind: {kind}" for kind in CLAIMS)])
@pytest.mark.parametrize("metadata", ["3", "[a]", "{name: a, labels: [x]}", "{name: a, annotations: x}", "{name: [b]}"])
def test_policy_objects_of_another_shape_are_for_the_api_server_to_refuse(
    inject: Run, kind: str, metadata: str
) -> None:
    source = f"apiVersion: {kind}\nmetadata: {metadata}\nspec: {{devices: {{requests: 7}}}}\n"
    code, out, _ = inject(f"{source}---\n{text(wrapped('Pod', pod(), namespace='a'))}", "--templates")
    assert code == 0
    assert out.startswith(source)


def test_a_ceiling_from_a_file_of_namespaces_refuses(inject: Run, tmp_path: Path) -> None:
    (tmp_path / "ns.yaml").write_text(NAMESPACE % ("max-memory", "1Gi"))
    options = ("--namespaces", str(tmp_path / "ns.yaml"))
    code, out, err = inject(text(wrapped("Pod", pod())), *options, "-n", "a")
    assert (code, out) == (1, "")
    assert "max-memory" in err
    assert inject(text(wrapped("Pod", pod())), *options)[0] == 0


def test_a_refusal_names_document_and_field_and_nothing_is_written(inject: Run) -> None:
    source = text(wrapped("Pod", pod())) + "---\n\n---\n" + text(wrapped("CronJob", pod(memory="1Mi"), "b"))
    code, out, err = inject(source)
    line = source[: source.index("batch/v1")].count("\n") + 1
    assert (code, out) == (1, "")
    field = "spec.jobTemplate.spec.template.metadata.annotations[gpu-share.io/memory]"
    assert f"document 2 (CronJob b/cronjob-1, line {line}): {field}: 1Mi is below" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("last", ["name: b", "annotations: {gpu-share.io/memry: 1Gi}"])
def test_documents_are_counted_without_the_empty_ones(inject: Run, last: str) -> None:
    empty, metadata = "---\n---\n# nothing\n---\na: 1\n---\n", f"metadata:\n  name: a\n  {last}\n"
    source = f"{empty}apiVersion: v1\nkind: Pod\n{metadata}spec: {{containers: [{{name: a}}]}}\n"
    assert "gpu-share: document 2" in inject(source)[2]


@pytest.mark.parametrize("merged", ["<<: {apiVersion: v1, kind: Pod}", "<<: [{apiVersion: v1}, {kind: Pod}]"])
def test_a_pod_whose_kind_is_merged_in_is_rewritten(inject: Run, merged: str) -> None:
    asked = pod()
    code, out, _ = inject(f"{merged}\n{text(asked)}")
    assert (code, "resourceClaims:" in out, yaml.safe_load(out)["kind"]) == (0, True, "Pod")


def test_aliases_do_not_let_one_container_change_another(inject: Run) -> None:
    source = (
        "apiVersion: v1\nkind: Pod\nmetadata: {annotations: {gpu-share.io/memory: 1Gi}}\nspec:\n  containers:\n"
        "  - &c {name: one, image: i, env: &e [{name: A, value: b}]}\n  - {<<: *c, name: two}\n"
    )
    code, out, _ = inject(source)
    one, two = yaml.safe_load(out)["spec"]["containers"]
    assert code == 0
    assert "0=1024M" in str(one["env"])
    assert "0=1024M" not in str(two["env"])


def test_templates_stand_before_the_document_that_names_them_once_per_namespace(inject: Run) -> None:
    source = "---\n".join(
        text(wrapped(kind, pod(), where)) for kind, where in [("Pod", "a"), ("Job", "a"), ("Pod", "b")]
    )
    code, out, _ = inject(source, "--templates")
    documents = list(yaml.safe_load_all(out))
    assert code == 0
    assert [d["kind"] for d in documents] == ["ResourceClaimTemplate", "Pod", "Job", "ResourceClaimTemplate", "Pod"]
    assert documents[0]["metadata"]["name"] == documents[1]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    assert [documents[i]["metadata"]["namespace"] for i in (0, 3)] == ["a", "b"]


def test_a_pod_with_a_claim_of_its_own_in_the_stream_is_left_as_it_is(inject: Run) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine"},
        "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu-share.io"}}]}},
    }
    own = wrapped("Pod", pod())
    own["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": "mine"}]
    own["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    source = text(own) + "---\n" + text(claim)
    code, out, err = inject(source)
    assert (code, out) == (0, source)
    assert "own ResourceClaims" in err


def test_annotations_on_the_workload_instead_of_its_pods_are_pointed_out(inject: Run) -> None:
    value = wrapped("Deployment", pod(memory=None))
    value["metadata"]["annotations"] = {"gpu-share.io/memory": "4Gi"}
    code, out, err = inject(text(value))
    assert (code, out) == (0, text(value))
    assert "move it to spec.template.metadata.annotations" in err


def test_labels_that_should_be_annotations_are_pointed_out(inject: Run) -> None:
    asked = pod(memory=None)
    enabled = {"gpu-share.io/managed": "true", "gpu-share.io/enabled": "true"}
    asked["metadata"]["labels"] = {"gpu-share.io/memory": "4Gi", **enabled, "app": "a"}
    source = text(wrapped("Deployment", asked))
    code, out, err = inject(source)
    assert (code, out) == (0, source)
    assert (
        "spec.template.metadata.labels[gpu-share.io/memory] has no effect as a label of a pod; make it an annotation"
        in err
    )
    assert "labels[gpu-share.io/enabled] has no effect as a label of a pod; remove it" in err
    assert "managed" not in err


@pytest.mark.parametrize("source", ["", text(wrapped("Pod", pod(memory=None))), FOREIGN[0]])
def test_a_stream_in_which_nothing_asks_is_reported_to_be_one(inject: Run, source: str) -> None:
    code, out, err = inject(source)
    assert (code, out) == (0, source)
    assert err.startswith("nothing to rewrite: ") and "gpu-share.io/memory" in err


def test_nothing_is_reported_of_a_stream_that_is_rewritten_already(inject: Run) -> None:
    asked = pod()
    asked["spec"]["securityContext"] = {"runAsNonRoot": True}
    once = inject(text(wrapped("Pod", asked)))
    assert once[2] == ""
    assert inject(once[1]) == (0, once[1], "")


def test_json_output_holds_every_document(inject: Run) -> None:
    code, out, _ = inject(text(wrapped("Pod", pod())) + "---\na: 1\n", "-o", "json")
    assert code == 0
    assert [document.load().get("kind") for document in split(out)] == ["Pod", None]


def test_yaml_output_of_json_documents_can_be_read_as_yaml(inject: Run) -> None:
    source = text(wrapped("Pod", pod()), as_json=True) + '{"a": 1}\n'
    code, out, _ = inject(source, "-o", "yaml", "--templates")
    kinds = [document.get("kind") for document in yaml.safe_load_all(out) if document]
    assert (code, kinds) == (0, ["ResourceClaimTemplate", "Pod", None])


def test_patch_output_has_paths_from_the_document(inject: Run) -> None:
    code, out, _ = inject(text(wrapped("Deployment", pod(), "a")), "-o", "patch")
    (one,) = json.loads(out)
    assert (code, one["kind"], one["namespace"], one["reason"]) == (0, "Deployment", "a", "Applied")
    assert all(op["path"].startswith("/spec/template/") for op in one["patch"])


def test_diff_output_is_coloured_only_when_wanted(inject: Run) -> None:
    source = text(wrapped("Pod", pod()))
    plain = inject(source, "-o", "diff")[1]
    assert "\x1b" not in plain
    assert "\n+  resourceClaims:" in plain
    assert "\x1b[32m+  resourceClaims:\x1b[0m" in inject(source, "-o", "diff", "--color", "always")[1]


def test_settings_are_those_of_the_webhook(inject: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text(wrapped("Pod", pod()))
    monkeypatch.setenv("GPU_SHARE_IMAGE", "from-variable")
    assert "image: from-variable" in inject(source)[1]
    monkeypatch.setenv("GPU_SHARE_MAX_MEMORY", "1Gi")
    assert inject(source)[0] == 1
    monkeypatch.setenv("GPU_SHARE_MAX_MEMORY", "1")
    assert inject(source)[0] == 2


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text(wrapped("Pod", pod())).encode())))
    assert main(["inject", "-f", "-"]) == 0
    assert "resourceClaims" in capsys.readouterr().out
