"""Which command lines are warned about: each row is a container as people write it, and what is said of it."""

from typing import Any

import pytest

from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import WARNING_LENGTH, mutate_pod
from webhook.mutation.settings import Settings

UNIFIED = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
FLAG = f"--gpu-memory-utilization=${contract.MEMORY_FRACTION}"
MPI_HOSTS = [{"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"}]
Case = dict[str, Any]


def sh(line: str, **more: Any) -> Case:
    return {"command": ["sh", "-c"], "args": [line], **more}


VLLM: list[Case] = [
    {"command": ["vllm", "serve", "Qwen/Qwen3-1.7B"]},
    {"command": ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ["--model", "a"]},
    {"image": "registry.example:5000/vllm/vllm-openai:v0.9.1", "args": ["--model=Qwen/Qwen3-1.7B"]},
    {"image": "vllm/vllm-openai@sha256:0"},
    sh("exec /opt/venv/bin/vllm serve $MODEL --port $PORT"),
    sh('set -e; vllm serve "$MODEL" --max-model-len=$LENGTH'),
]
RANKS: list[Case] = [
    {"command": ["torchrun", "--nproc_per_node=2", "train.py"]},
    {"command": ["torchrun"], "args": ["--standalone", "--nproc-per-node", "2", "train.py"]},
    sh("cd /app && python -m torch.distributed.launch --nproc_per_node 8 train.py"),
    sh("mpirun -np 2 ./all_reduce_perf -n 50"),
    sh("nice -n 19 mpiexec -n 4 ./all_gather_perf"),
    {"command": ["horovodrun", "-np", "2", "python", "a.py"]},
    sh("accelerate launch --num_processes=2 a.py"),
    sh("vllm serve a --tensor-parallel-size 2 --gpu-memory-utilization 0.3"),
    {"command": ["python", "-m", "sglang.launch_server", "--model-path", "a", "--tp", "2"]},
]
MANAGED: list[Case] = [
    {"env": [{"name": UNIFIED, "value": "0"}]},
    {"env": [{"name": UNIFIED, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    sh(f"{UNIFIED}=1 llama-server -m a.gguf"),
]
SILENT: list[Case] = [
    {},
    {"command": ["sleep", "infinity"], "image": "vllm/vllm-openai:v0.9.1"},
    {"image": "vllm/vllm-openai:v0.9.1", "args": ["--model", "a", "--gpu_memory_utilization", "$(FRACTION)"]},
    sh(f"exec vllm serve a {FLAG}"),
    sh(f'exec vllm serve a "{FLAG}"'),
    sh("vllm serve a --config=/etc/vllm.yaml"),
    sh("vllm serve a $VLLM_ARGS"),
    sh('vllm serve a "$@"'),
    sh("vllm bench serve --model a"),
    {"command": ["vllm", "chat"]},
    {"image": "bench/vllm-client", "args": ["--vllm-url", "http://vllm:8000"]},
    {"command": ["torchrun", "--nproc_per_node=1", "--nnodes=2", "train.py"]},
    {"command": ["torchrun", "--nproc_per_node=gpu", "train.py"]},
    {"command": ["torchrun", "--nproc_per_node=$(RANKS)", "train.py"]},
    {"command": ["torchrun", "--nproc_per_node=2", "train.py", "--backend=gloo"]},
    {"command": ["torchrun", "--nproc_per_node", "99999999999", "train.py"]},
    {"command": ["torchrun", "train.py", "--nproc_per_node"]},
    sh("mpirun -np 4 --hostfile /etc/mpi/hostfile ./a.out"),
    sh("mpirun -np 4 ./a.out", env=MPI_HOSTS),
    sh("accelerate launch --num_processes=2 --num_machines 2 a.py"),
    sh("mpirun -np 4 gmx_mpi mdrun"),
    sh("mpirun --allow-run-as-root ./all_reduce_perf -n 50"),
    sh("torchrun train.py --nproc-per-node 4"),
    sh("python -m sglang.launch_server --model-path m --tp 2 --nnodes 2 --node-rank 0"),
    sh(f"vllm serve m -tp 2 --distributed-executor-backend ray {FLAG}"),
    sh("torchrun --nproc_per_node=2 train.py --dist-backend GLOO"),
    sh("vllm serve m --enforce-eager $EXTRA_ARGS"),
    sh("vllm serve m --chat-template=" + "x" * 9000 + f" {FLAG}"),
    {"command": "torchrun --nproc_per_node=2"},
    {"command": [None, 3], "args": [{}]},
    sh("echo " + "a " * 20_000 + "; vllm serve a"),
]


def warned(case: Case, **annotations: str) -> list[str]:
    container = {"name": "main", "image": "a", **case}
    spec = {"containers": [container], "securityContext": {"runAsNonRoot": True}}
    asked = annotations or {contract.MEMORY: "4Gi"}
    pod = {"metadata": {"annotations": asked}, "spec": spec}
    return [*mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).warnings]


def about(case: Case, **annotations: str) -> list[str]:
    found = warned(case, **annotations)
    assert all(len(each) <= WARNING_LENGTH and not each.endswith("...") for each in found)
    words = {"vLLM fills the GPU": "vllm", "selects managed memory": "managed", "NCCL refuses": "ranks"}
    return [kind for each in found for text, kind in words.items() if text in each]


@pytest.mark.parametrize(("kind", "cases"), [("vllm", VLLM), ("ranks", RANKS), ("managed", MANAGED)])
def test_what_the_command_line_shows_is_reported(kind: str, cases: list[Case]) -> None:
    assert [case for case in cases if about(case) != [kind]] == []


def test_what_is_right_or_cannot_be_seen_is_passed_over() -> None:
    assert [case for case in SILENT if warned(case)] == []


def test_a_warning_says_what_to_do() -> None:
    assert warned(VLLM[0]) == [
        "main: vLLM fills the GPU; start it by sh -c with --gpu-memory-utilization=$GPU_SHARE_MEMORY_FRACTION"
    ]


def test_a_long_name_is_cut_and_not_the_advice() -> None:
    case = {**VLLM[0], "name": "m" * 63}
    assert about(case) == ["vllm"]


def test_of_a_mig_instance_vllms_default_fits() -> None:
    assert about(VLLM[0], **{contract.MIG_PROFILE: "1g.10gb"}) == []
    assert about(RANKS[0], **{contract.MIG_PROFILE: "1g.10gb"}) == ["ranks"]


def test_as_many_ranks_as_gpus_are_right() -> None:
    two = {contract.MEMORY: "4Gi", contract.GPUS: "2"}
    assert about(RANKS[0], **two) == []
    assert about(RANKS[2], **two) == ["ranks"]


def test_containers_without_a_share_are_not_read() -> None:
    share = {contract.MEMORY_OF + "other": "4Gi"}
    pod = {
        "metadata": {"annotations": share},
        "spec": {
            "securityContext": {"runAsNonRoot": True},
            "containers": [{"name": "other", "image": "a"}, {"name": "main", "image": "a", **VLLM[0]}],
        },
    }
    assert mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).warnings == ()
