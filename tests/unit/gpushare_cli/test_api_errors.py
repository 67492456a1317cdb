"""What is made of the API server's refusals; the words are Kubernetes 1.37's."""

import re
from pathlib import Path

import pytest

from gpushare.errors import ClusterError, GpuShareError
from gpushare_cli import main as program
from gpushare_cli.lookups import optional
from gpushare_cli.main import main
from gpushare_cli.words import AGAIN, sentence

ROLES = Path(__file__).parents[3] / "deploy/helm/gpu-share/templates/rbac-people.yaml"


def refused(verb: str, resource: str, where: str) -> ClusterError:
    group = "" if resource in {"pods", "events", "nodes", "pods/exec"} else "resource.k8s.io"
    said = f'{resource} "x" is forbidden: User "jo" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    return ClusterError(f"GET /somewhere: {said}", 403)


IN_ASR, EVERYWHERE = 'in the namespace "asr"', "at the cluster scope"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused("get", "pods", IN_ASR), "get pods in namespace asr; ask for the ClusterRole view in namespace asr"),
        (
            refused("list", "resourceclaims", IN_ASR),
            "list resourceclaims in namespace asr; ask for the ClusterRole gpu-share-view in namespace asr",
        ),
        (
            refused("patch", "pods", IN_ASR),
            "patch pods in namespace asr; ask for the ClusterRole gpu-share-resize in namespace asr",
        ),
        (
            refused("create", "resourceclaimtemplates", 'in the namespace "x"'),
            "create resourceclaimtemplates in namespace x; ask for the ClusterRole gpu-share-edit in namespace x",
        ),
        (
            refused("list", "resourceslices", EVERYWHERE),
            "list resourceslices in the cluster; ask for the ClusterRole gpu-share-operator",
        ),
        (
            refused("delete", "resourceslices", EVERYWHERE),
            "delete resourceslices in the cluster; ask an administrator for a role with verb delete on resourceslices",
        ),
    ],
)
def test_a_missing_right_is_named_with_the_role_that_has_it(error: ClusterError, says: str) -> None:
    assert sentence(error) == f"you may not {says}"


def test_nobody_is_sent_for_the_right_to_run_commands_in_enforcers() -> None:
    said = sentence(refused("create", "pods/exec", 'in the namespace "gpu-share-system"'))
    assert said.startswith(
        "you may not create pods/exec in namespace gpu-share-system; this permission equals root access"
    )


def test_the_roles_that_are_named_are_the_charts() -> None:
    shipped = set(re.findall(r"^  name: (gpu-share-\S+)", ROLES.read_text(), re.MULTILINE))
    source = Path(program.__file__).with_name("words.py").read_text()
    assert set(re.findall(r'"(gpu-share-[a-z]+)"', source)) <= shipped


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ClusterError("PATCH /x: the object has been modified; please apply your changes", 409), f"{AGAIN} (PATCH /x:"),
        (ClusterError('POST /x: pods "a" already exists', 409), 'POST /x: pods "a" already exists'),
        (ClusterError("GET /x: Unauthorized", 401), "the API server does not accept your credentials; log in"),
        (ClusterError('PATCH /x: ValidatingAdmissionPolicy "p" denied: no', 403), "PATCH /x: Validating"),
        (ClusterError("GET /x: the API server does not answer", 0), "GET /x: the API server does not answer"),
        (GpuShareError("something else"), "something else"),
    ],
)
def test_conflicts_say_to_run_it_again_and_everything_else_is_reported_as_it_is(
    error: GpuShareError, says: str
) -> None:
    assert sentence(error).startswith(says)
    assert (AGAIN in sentence(error)) == says.startswith(AGAIN)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused("list", "resourceslices", EVERYWHERE), "you may not list resourceslices in the cluster; ask for"),
        (ClusterError("the object has been modified", 409), AGAIN),
    ],
)
def test_the_command_line_says_it_so(
    error: ClusterError, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> int:
        raise error

    monkeypatch.setattr("gpushare_cli.version.run", failing)
    assert main(["version"]) == 1
    assert capsys.readouterr().err.startswith(f"gpu-share: {says}")


@pytest.mark.parametrize("status", [403, 404])
def test_what_a_user_may_not_read_is_left_out(status: int) -> None:
    assert optional(lambda: refuse(status)) is None


@pytest.mark.parametrize("status", [401, 500])
def test_credentials_that_expired_are_no_missing_right(status: int) -> None:
    with pytest.raises(ClusterError):
        optional(lambda: refuse(status))


def refuse(status: int) -> str:
    raise ClusterError("GET /x: no", status)
