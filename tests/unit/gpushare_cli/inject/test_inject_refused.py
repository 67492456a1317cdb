"""What ``inject`` refuses: with the value that is there, its place, and something to write that is accepted."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from gpushare.annotation_table import OF_NAMESPACES, OF_PODS
from gpushare_cli.main import main
from tests.unit.gpushare_cli.injecting import NAMESPACE, Run
from tests.unit.gpushare_cli.streams import pod, text, wrapped


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        ("gpu-share.io/compute: 25", "write for example 25%"),
        ("compute.gpu-share.io/main: 25", "write for example 25%"),
        ("gpu-share.io/memory: 4096", "write for example 4Gi"),
        ("gpu-share.io/same-gpu: no", 'write for example "true" or "false", in quotes'),
        ("gpu-share.io/memory: 1e3", "write for example 4Gi"),
        ("gpu-share.io/memory: ~", "write for example 4Gi"),
        ("gpu-share.io/memory: true", "write for example 4Gi"),
        ("gpu-share.io/memory: [4Gi]", "write for example 4Gi"),
        ("memory.gpu-share.io/main: {4Gi: }", "write for example 4Gi"),
        ("gpu-share.io/gpus: 2", 'write for example "2", in quotes'),
        ("gpus.gpu-share.io/main: 17", 'write for example "2"'),
        ("gpu-share.io/same-gpu: 0", 'write for example "true" or "false"'),
        ("gpu-share.io/gpu-model: 100", "write for example H100 or H100,A100"),
        ("gpu-share.io/mig-profile: 1", "write for example 1g.10gb"),
        ("gpu-share.io/memry: 1", "write one, in quotes"),
        ("gpu-share.io/memory: " + "9" * 5000, "the number has 5000 digits; write a smaller number"),
    ],
)
def test_what_yaml_reads_as_something_else_than_a_string_is_refused(inject: Run, annotation: str, says: str) -> None:
    head = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: main}]}\nmetadata:\n  annotations:\n    "
    source = head + annotation
    code, out, err = inject(source)
    assert (code, out) == (1, "")
    assert says in err
    assert ("5000 digits" in err) or f"metadata.annotations[{annotation.split(':', maxsplit=1)[0]}]" in err


ADVISED = [
    (key, value)
    for key in (*OF_PODS, "memory.gpu-share.io/main", "compute.gpu-share.io/main")
    for value in ("4096", "true", "[4Gi]", "9" * 300)
]


@pytest.mark.parametrize(("key", "value"), ADVISED)
def test_what_is_advised_instead_of_no_string_is_accepted(inject: Run, key: str, value: str) -> None:
    pod_head = (
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: main}]}\nmetadata:\n  namespace: a\n  annotations:\n    "
    )
    head = f"{NAMESPACE % ('max-memory-limit', '80Gi')}---\n{pod_head}"
    memory = "" if key in {contract.MEMORY, contract.MIG_PROFILE} else f"    {contract.MEMORY}: 4Gi\n"
    _, _, err = inject(f"{head}{key}: {value}\n{memory}")
    advice = err.rpartition("; write ")[2].removeprefix("for example ").split(" ")[0].strip(",\n")
    code, _, err = inject(f"{head}{key}: {advice}\n{memory}")
    assert (code, err) == (0, err), (advice, err)


@pytest.mark.parametrize("key", OF_NAMESPACES)
@pytest.mark.parametrize("value", ["5", "true", "[4Gi]"])
def test_what_is_advised_on_a_namespace_is_accepted(inject: Run, key: str, value: str) -> None:
    bare = key.partition("/")[2]
    asked = f"---\n{text(wrapped('Pod', pod(), 'a'))}"
    _, _, err = inject(NAMESPACE % (bare, value) + asked)
    advice = err.rpartition("; write ")[2].removeprefix("for example ").split(" ")[0].strip(",\n")
    _, _, err = inject(NAMESPACE % (bare, advice) + asked)
    assert "annotations are strings" not in err
    assert "namespace metadata.annotations" not in err, (advice, err)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("default-memory", "write for example 4Gi"),
        ("max-memory", "write for example 4Gi"),
        ("max-compute", "write for example 25%"),
        ("on-exceed", "write for example kill, kill-container or warn"),
        ("grace-period", "write for example 5s"),
        ("tolerance", "write for example 256Mi or 5%"),
    ],
)
def test_a_number_on_a_namespace_is_refused_with_what_to_write(inject: Run, key: str, says: str) -> None:
    code, out, err = inject(NAMESPACE % (key, "4"))
    assert (code, out) == (1, "")
    assert f"Namespace a: metadata.annotations[gpu-share.io/{key}]: 4 is not a string" in err
    assert says in err


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"\x7fELF\x01\x00\x00", "NUL byte"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("apiVersion: v1\nkind: Pod\nkind: Pod\n", "document 1, line 3: the key 'kind' occurs twice"),
        (
            "apiVersion: v1\nkind: Pod\nspec: {{ .Values.spec }}",
            "document 1, line 3: a key must be a string; .*helm template",
        ),
        ("apiVersion: v1\nkind: Pod\nspec:\n  x: 1e400", "document 1, line 4: 1e400 is not a JSON number"),
        ("apiVersion: v1\nkind: Pod\nspec:\n\tcontainers: []", "line 4: not YAML: .* never with tabs"),
        ("apiVersion: v1\nkind: Pod\nspec: !!binary aGk=", "document 1, line 3: 'aGk=' has the YAML tag !!binary"),
        ("a: 1\n---\napiVersion: v1\nkind: Pod\nspec:\n  x: !!bool abc", "document 2, line 6: 'abc' cannot be read"),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line(inject: Run, source: str | bytes, says: str) -> None:
    code, out, err = inject(source)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.search(says, err), err


@pytest.mark.parametrize("value", ["!!bool abc", '!!int ""', '!!int "-"', '!!float ""', "!!timestamp abc", "!!map a"])
def test_a_tag_at_anything_is_no_traceback_wherever_it_is_read(inject: Run, tmp_path: Path, value: str) -> None:
    (tmp_path / "ns.yaml").write_text(f"{NAMESPACE % ('max-memory', '1Gi')}spec: {value}\n")
    asked, map_ = text(wrapped("Pod", pod())), f"apiVersion: v1\nkind: ConfigMap\ndata: {{a: {value}}}\n"
    code, out, err = inject(asked, "--namespaces", str(tmp_path / "ns.yaml"))
    assert (code, out, "document 1, line 6: '" in err) == (1, "", True)
    code, out, err = inject(f"{map_}---\n{asked}", "-o", "json")
    assert (code, out, "document 1, line 3: '" in err) == (1, "", True)
    assert inject(f"{map_}---\n{asked}")[0] == 0


@pytest.mark.parametrize("image", [" ", "a b", "a\nb", "Upper", "a:", "a@sha256:1", ":1", "http://a/b", "a//b"])
def test_what_is_no_image_is_refused_before_it_stands_in_a_pod(
    inject: Run, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_SHARE_IMAGE", image)
    code, out, err = inject(text(wrapped("Pod", pod())))
    assert (code, out) == (2, "")
    said = f"GPU_SHARE_IMAGE: {image!a} is not an image; write for example registry.example/gpu-share:0.1.0"
    assert err == f"gpu-share: {said}\n"


@pytest.mark.parametrize("value", ["0", "00", "999999999999999"])
def test_a_largest_share_that_is_none_is_answered_with_an_example(
    inject: Run, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_SHARE_MAX_MEMORY", value)
    code, _, err = inject(text(wrapped("Pod", pod())))
    assert (code, "GPU_SHARE_MAX_MEMORY" in err, "write for example 4Gi" in err) == (2, True, True), err


def test_a_file_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", "-f", "/nowhere/x.yaml"]) == 2
    assert capsys.readouterr().err == "gpu-share: /nowhere/x.yaml cannot be read: No such file or directory\n"


@pytest.mark.parametrize("options", [("-f", ""), ("--namespaces", "")])
def test_an_empty_name_of_a_file_is_shown(inject: Run, options: tuple[str, ...]) -> None:
    code, out, err = inject(text(wrapped("Pod", pod())), *options)
    assert (code, out) == (2, "")
    assert err == "gpu-share: '' is not a file name; write one, or - for standard input\n"


@pytest.mark.parametrize(
    "content", ["", "- 5\n", "kind: Namespaces\n", "apiVersion: v1\nkind: Namespace\n", "# none\n"]
)
def test_a_file_of_namespaces_without_namespaces_is_refused(inject: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "ns.yaml"
    file.write_text(content)
    code, out, err = inject(text(wrapped("Pod", pod())), "--namespaces", str(file))
    assert (code, out) == (2, "")
    assert err == f"gpu-share: --namespaces {file} must contain Namespaces with names and nothing else\n"


def privileged(asked: dict[str, Any]) -> dict[str, Any]:
    asked["spec"]["hostPID"] = True
    asked["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return asked


def test_every_problem_of_every_document_is_reported_and_nothing_is_written(inject: Run) -> None:
    documents = [
        wrapped("Pod", privileged(pod())),
        wrapped("Deployment", pod(), "a"),
        wrapped("CronJob", privileged(pod(memory="1Mi", **{"gpu-share.io/same-gpu": "maybe"})), "b"),
    ]
    code, out, err = inject("---\n".join(map(text, documents)))
    assert (code, out) == (1, "")
    expected = {
        "document 1 (Pod pod-1": ["spec.containers[0].securityContext.privileged", "spec.hostPID"],
        "document 3 (CronJob b/cronjob-1": [
            "spec.jobTemplate.spec.template.metadata.annotations[gpu-share.io/memory]",
            "spec.jobTemplate.spec.template.metadata.annotations[gpu-share.io/same-gpu]",
            "spec.jobTemplate.spec.template.spec.containers[0].securityContext.privileged",
            "spec.jobTemplate.spec.template.spec.hostPID",
        ],
    }
    lines = [line.removeprefix("* ") for line in err.splitlines() if line.startswith("* ")]
    found: dict[str, list[str]] = {}
    for line in lines:
        where, field, _ = line.split(": ", 2)
        found.setdefault(where.partition(", line")[0], []).append(field)
    assert found == expected


def test_a_document_that_cannot_be_read_is_reported_beside_the_problems_of_the_others(inject: Run) -> None:
    unreadable = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  priority: .inf\n"
    twice = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, name: b}\n"
    documents = [text(wrapped("Pod", privileged(pod()))), unreadable, text(wrapped("Pod", privileged(pod()))), twice]
    code, out, err = inject("---\n".join(documents))
    assert (code, out) == (1, "")
    for number in (1, 3):
        assert f"* document {number} (Pod pod-1" in err
    assert "* document 2, line " in err
    assert "* document 4, line " in err


def test_of_a_long_stream_every_refused_document_is_reported(inject: Run) -> None:
    documents = [wrapped("Job", privileged(pod())) for _ in range(100)]
    code, out, err = inject("---\n".join(map(text, documents)))
    assert (code, out) == (1, "")
    assert {number for number in range(1, 101) if f"* document {number} (" in err} == set(range(1, 101))
    assert err.count("hostPID") == 100


def test_problems_of_a_namespace_are_reported_once_beside_those_of_its_pods(inject: Run) -> None:
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations: {%s}\n"
    policy = "gpu-share.io/max-memory: 8XB, gpu-share.io/max-compute: 7, gpu-share.io/on-exceed: kick"
    pods = [text(wrapped("Pod", privileged(pod()), "a")), text(wrapped("Pod", pod(), "a"))]
    code, out, err = inject("---\n".join([namespace % policy, *pods]))
    assert (code, out) == (1, "")
    for key in ("max-memory", "max-compute", "on-exceed"):
        assert err.count(f"Namespace a: metadata.annotations[gpu-share.io/{key}]") == 1
    assert "document 2 (Pod a/pod-1, line 7): spec.hostPID" in err
    assert "document 3" not in err


def test_a_value_that_is_no_string_is_reported_once_beside_other_problems(inject: Run) -> None:
    asked = privileged(pod(memory=4, **{"gpu-share.io/same-gpu": True, "gpu-share.io/memry": 7}))  # type: ignore[arg-type] # what people write
    code, out, err = inject(text(wrapped("Pod", asked)))
    assert (code, out) == (1, "")
    fields = [line.split(": ")[1] for line in err.splitlines() if line.startswith("* ")]
    unknown = "metadata.annotations[gpu-share.io/memry]"
    assert sorted(fields) == [
        "metadata.annotations[gpu-share.io/memory]",
        unknown,
        unknown,
        "metadata.annotations[gpu-share.io/same-gpu]",
        "spec.containers[0].securityContext.privileged",
        "spec.hostPID",
    ]
