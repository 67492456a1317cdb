"""Numbers that are a fraction of a card: each row of the table is found, and replaced where it can be."""

import json
import subprocess
import sys
from typing import Any

import pytest

from gpushare import contract
from gpushare.annotation_values import parse_frameworks
from gpushare.fractions import ON_REQUEST, TABLE, VARIABLE, Fraction
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import WARNING_LENGTH, Mutation, mutate_pod
from webhook.mutation.settings import Settings

Case = dict[str, Any]
OPTIONS = [(row, option) for row in TABLE for option in row.options]
VARIABLES = [(row, name) for row in TABLE for name in row.variables]
SHARE = {contract.MEMORY: "4Gi"}
LONG = "m" * 63
PRINTS = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
VLLM = ["--gpu-memory-utilization", "0.9"]


def mutated(case: Case, annotations: dict[str, str] = SHARE, frameworks: tuple[str, ...] = ()) -> Mutation:
    container = {"name": LONG, "image": "a", **case}
    spec = {"containers": [container], "securityContext": {"runAsNonRoot": True}}
    policy = NamespacePolicy(frameworks=frameworks)
    return mutate_pod({"metadata": {"annotations": annotations}, "spec": spec}, policy=policy, settings=Settings())


def container(found: Mutation) -> Case:
    (made,) = found.pod["spec"]["containers"]
    return dict(made)


def sh(line: str) -> Case:
    return {"command": ["sh", "-c", line]}


def check_warning(case: Case, row: Fraction, name: str, number: str) -> None:
    (found,) = mutated(case).warnings
    assert f"{name} {number}" in found
    assert len(found) < WARNING_LENGTH
    assert row.of not in VARIABLE or f"${VARIABLE[row.of]}" in found


@pytest.mark.parametrize(("row", "option"), OPTIONS)
def test_an_option_is_found_in_words_and_in_scripts(row: Fraction, option: str) -> None:
    value, below = f"{row.before}0.85", option.replace("-", "_").replace("__", "--", 1)
    for case in (
        {"args": ["--model", "m", option, value]},
        {"args": [f"{option}={value}", "--port=80"]},
        sh(f'set -e; exec serve "m" {option}="{value}"'),
        sh(f"serve m {option} {value}; true"),
    ):
        check_warning(case, row, option, "0.85")
    check_warning({"args": [f"{below}={value}"]}, row, below, "0.85")


@pytest.mark.parametrize(("row", "name"), VARIABLES)
def test_a_variable_is_found_in_the_environment_and_in_scripts(row: Fraction, name: str) -> None:
    check_warning({"env": [{"name": "A", "value": "b"}, {"name": name, "value": f"{row.before}.5"}]}, row, name, ".5")
    check_warning(sh(f"{name}={row.before}.5 python a.py"), row, name, ".5")


def test_what_is_no_number_of_a_fraction_is_passed_over() -> None:
    silent: list[Case] = [
        {"args": ["--gpu-memory-utilization", "$(FRACTION)"]},
        {"args": ["--gpu-memory-utilization"]},
        sh('serve --gpu-memory-utilization="$GPU_SHARE_MEMORY_FRACTION"'),
        {"args": ["--rmm-pool-size", "12GB"]},
        {"args": ["--rmm-pool-size=1"]},
        {"args": ["--device-memory-limit", "0.9GB"]},
        {"args": ["--backend-config=tensorflow,version=0.9"]},
        {"args": ["--top-p", "0.9", "--fraction", "0.1"]},
        {"env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]},
        {"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "max_split_size_mb:512"}]},
        {"env": [{"name": "CUDA_MEMORY_FRACTION", "value": 3}]},
    ]
    assert [case for case in silent if mutated(case).warnings] == []


def test_of_a_mig_instance_a_fraction_is_right() -> None:
    assert mutated({"args": VLLM}, {contract.MIG_PROFILE: "1g.10gb"}).warnings == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["serve", "m", *VLLM, "--port", "80"], ["serve", "m", "--port", "80"]),
        (["serve", "--gpu_memory_utilization=0.9", "a b", "$HOME"], ["serve", "a b", "$HOME"]),
        (["serve", *VLLM, "--gpu-memory-utilization=.5"], ["serve"]),
    ],
)
def test_a_namespace_has_the_fraction_of_the_share_passed(before: list[str], after: list[str]) -> None:
    """The shell that the webhook writes is run: with the variable that the driver would set."""
    for case in ({"command": [*PRINTS, *before]}, {"command": PRINTS, "args": before}):
        found = mutated(case, frameworks=("vllm",))
        made = container(found)
        line = [*made["command"], *made.get("args", [])]
        output = subprocess.run(line, env={contract.MEMORY_FRACTION: "0.1875"}, check=True, capture_output=True).stdout
        *kept, passed = json.loads(output)
        assert kept == after
        assert passed.replace("_", "-") == "--gpu-memory-utilization=0.1875"
        assert [each for each in found.warnings if "0.9" in each or len(each) >= WARNING_LENGTH] == []


def test_vllm_without_the_option_gets_it() -> None:
    made = container(mutated({"command": ["vllm", "serve", "m"]}, frameworks=("vllm",)))
    script = 'exec "$@" --gpu-memory-utilization="$GPU_SHARE_MEMORY_FRACTION"'
    assert made["command"] == ["/bin/sh", "-c", script, "sh", "vllm", "serve", "m"]


def test_what_was_passed_is_passed_once() -> None:
    once = mutated({"command": ["vllm", "serve", "m", *VLLM]}, frameworks=("vllm", "sglang")).pod
    twice = mutate_pod(once, policy=NamespacePolicy(frameworks=("vllm", "sglang")), settings=Settings())
    assert (twice.patch, twice.warnings) == ([], ())


@pytest.mark.parametrize(
    ("case", "frameworks"),
    [
        (sh("exec vllm serve m --gpu-memory-utilization 0.9"), ("vllm",)),
        ({"image": "vllm/vllm-openai:v1", "args": VLLM}, ("vllm",)),
        ({"command": ["run", "--", *VLLM]}, ("vllm",)),
        ({"command": ["vllm", "serve", *VLLM]}, ("sglang",)),
        ({"command": ["vllm", "serve", *VLLM]}, ()),
        ({"command": ["trtllm-serve", "--free-gpu-memory-fraction=0.9"]}, ON_REQUEST),
    ],
)
def test_elsewhere_the_command_stays_and_the_warning_too(case: Case, frameworks: tuple[str, ...]) -> None:
    found = mutated(case, frameworks=frameworks)
    assert (container(found).get("command"), container(found).get("args")) == (case.get("command"), case.get("args"))
    assert len(found.warnings) == 1


def test_of_a_mig_instance_the_command_stays() -> None:
    found = mutated({"command": ["vllm", "serve"]}, {contract.MIG_PROFILE: "1g.10gb"}, ("vllm",))
    assert container(found)["command"] == ["vllm", "serve"]


def test_a_namespace_may_name_them() -> None:
    assert parse_frameworks("vllm, jax") == ("vllm", "jax")
