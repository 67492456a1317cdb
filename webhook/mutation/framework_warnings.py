"""Warn where a command line shows that a framework will not start within its share, or takes memory nobody sees. Pure.

Only containers with a share are read. A script that calls another one shows nothing, so silence says nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, Final, NamedTuple

from gpushare import contract
from gpushare.fields import names_of
from gpushare.findings import Findings
from gpushare.fractions import BY_OPTION
from webhook.mutation.command_line import MAX_WORDS, Line, option_of, read_line
from webhook.mutation.literal_fractions import literals, passing
from webhook.mutation.podview import Container, PodView
from webhook.mutation.share_request import Share, ShareRequest

Json = Mapping[str, Any]
NAME_SHOWN: Final = 20
UNIFIED_MEMORY: Final = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
VLLM_FRACTION: Final = "--gpu-memory-utilization"
VLLM_CONFIG: Final = "--config"
VLLM_IMAGE: Final = "vllm-openai"
"""Its entrypoint is the server."""
VLLM: Final = (("vllm", "serve"), ("vllm.entrypoints.openai.api_server",), ("vllm.entrypoints.api_server",))
HOSTS: Final = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f")
HOSTS_VARIABLES: Final = ("HOSTFILE", "HOST_FILE")
"""Parts of the variables by which operators of MPI jobs say the same."""
MOST_DIGITS: Final = 4
NCCL_SIGNS: Final = ("nccl", "torch", "horovod", "_perf")
"""Parts of words by which a program that MPI starts is known to use NCCL; many do not."""
OPEN_NAMES: Final = ("ARGS", "OPTS", "OPTIONS", "FLAGS", "EXTRA")
"""Parts of variables that stand for options."""
PROGRAM: Final = ("python", "python3")
GLOO: Final = "gloo"
"""Another library than NCCL, which takes several ranks on one GPU."""


class Launcher(NamedTuple):
    """A program that starts ranks.

    Attributes:
        words: those by which it is called.
        options: those that say how many ranks.
        elsewhere: options by which ranks are on other machines too, so that their number says nothing.
        signs: parts of words of which one has to stand in the line.
    """

    words: tuple[str, ...]
    options: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    signs: tuple[str, ...] = ("",)


_PER_NODE: Final = ("--nproc-per-node",)
_NUMBER: Final = ("-np", "--np", "-n")
_TENSOR: Final = ("--tensor-parallel-size", "-tp", "--tp", "--tp-size")
_NODES: Final = ("--nnodes", "--node-rank", "--dist-init-addr", "--distributed-executor-backend")
LAUNCHERS: Final = (
    Launcher(("torchrun",), _PER_NODE),
    Launcher(("torch.distributed.run",), _PER_NODE),
    Launcher(("torch.distributed.launch",), _PER_NODE),
    Launcher(("accelerate", "launch"), ("--num-processes",), ("--num-machines",)),
    Launcher(("deepspeed",), ("--num-gpus",)),
    *(Launcher(words, _TENSOR, _NODES) for words in VLLM),
    Launcher(("sglang.launch_server",), _TENSOR, _NODES),
    *(Launcher((name,), _NUMBER, HOSTS, NCCL_SIGNS) for name in ("mpirun", "mpiexec")),
    Launcher(("horovodrun",), _NUMBER, HOSTS),
)


def warnings(findings: Findings, pod: PodView, plan: ShareRequest, frameworks: Collection[str]) -> None:
    """Warn about each container with a share.

    Args:
        findings: get the warnings.
        pod: what asks for shares.
        plan: those.
        frameworks: those that the namespace wants started with the share's own fraction.
    """
    room = MAX_WORDS
    for container in pod.containers:
        share = plan.of(container.name)
        if share is not None:
            line = read_line(container.raw, room)
            room -= len(line.words)
            _of_container(findings, container, line, share, frameworks)


def _of_container(
    findings: Findings, container: Container, line: Line, share: Share, frameworks: Collection[str]
) -> None:
    variables = names_of(container.env)
    name = container.name[:NAME_SHOWN]
    if not share.profile:
        _fractions(findings, container, line, variables, frameworks)
    if UNIFIED_MEMORY in variables or any(word.startswith(f"{UNIFIED_MEMORY}=") for word in line.words):
        findings.warn(f"{name}: {UNIFIED_MEMORY} selects managed memory, which no quota counts; remove it")
    ranks = _ranks(line, variables)
    if ranks > share.gpus:
        counted = f"{ranks} ranks on {share.gpus} GPU(s)"
        findings.warn(f"{name}: {counted}: NCCL refuses two ranks on one GPU; start one per GPU")


def _fractions(
    findings: Findings, container: Container, line: Line, variables: Sequence[Any], frameworks: Collection[str]
) -> None:
    name = container.name[:NAME_SHOWN]
    found = literals(line, variables, container.env)
    lacking = _lacks_fraction(line, container.raw)
    passed = frameworks and passing_of(container.raw, frameworks)
    if passed:
        findings.warn(f"{name}: is started by sh, with the memory fraction of its share (frameworks of the namespace)")
        found, lacking = [each for each in found if each.row.asked not in frameworks], False
    for each in found:
        findings.warn(f"{name}: {each.advice}")
    if lacking:
        findings.warn(f"{name}: vLLM fills the GPU; start it by sh -c with {VLLM_FRACTION}=${contract.MEMORY_FRACTION}")


def passing_of(raw: Json, frameworks: Collection[str]) -> Json | None:
    """Return the container with the fractions of its share for these frameworks; ``None``: it stays as it is."""
    line = read_line(raw)
    return passing(raw, frameworks, [BY_OPTION[VLLM_FRACTION]] if _lacks_fraction(line, raw) else [])


def _lacks_fraction(line: Line, raw: Mapping[str, Any]) -> bool:
    """Tell whether vLLM is started without its fraction, as far as that can be seen."""
    found = [rest for name in VLLM if name[0] in line.programs and (rest := line.after(name)) is not None]
    if not found and not raw.get("command") and _is_vllm(raw.get("image")):
        found = [line.words]
    if not (found and line.whole) or option_of(line.words, (VLLM_FRACTION,)) is not None:
        return False
    return not any(option_of(rest, (VLLM_CONFIG,)) is not None or _hides(rest) for rest in found)


def _is_vllm(image: object) -> bool:
    """Tell an image by the last part of its repository."""
    text = str(image or "")
    return VLLM_IMAGE in text and text.partition("@")[0].rpartition("/")[2].partition(":")[0] == VLLM_IMAGE


def _hides(rest: Sequence[str]) -> bool:
    """Tell whether a variable may hold options: by its name, or not first, as the model, nor behind an option."""
    if any(word.startswith("$") and any(part in word.upper() for part in OPEN_NAMES) for word in rest):
        return True
    return any(
        word.startswith("$") and not (before.startswith("-") and "=" not in before) for before, word in pairwise(rest)
    )


def _ranks(line: Line, variables: Sequence[str]) -> int:
    """Count the ranks that are started in a container, as far as that can be seen."""
    if not line.words:
        return 0
    known = [each for each in LAUNCHERS if each.words[0] in line.programs]
    calls = [(each, rest) for each in known if (rest := line.after(each.words)) is not None]
    if not calls or _has(line.words, (GLOO,)):
        return 0
    if any(part in name.upper() for name in variables for part in HOSTS_VARIABLES):  # an operator of MPI jobs
        return 0
    mine = [(each, _own(rest)) for each, rest in calls if _has(line.words, each.signs)]
    numbers = [option_of(rest, each.options) for each, rest in mine if option_of(rest, each.elsewhere) is None]
    return max((_number(each) for each in numbers if each), default=0)


def _own(rest: Sequence[str]) -> Sequence[str]:
    """Return a launcher's own options: those before the program that it starts."""
    return [*takewhile(lambda word: not (word in PROGRAM or word.startswith("./") or word.endswith(".py")), rest)]


def _has(words: Sequence[str], signs: Sequence[str]) -> bool:
    return any(sign in word.lower() for word in words for sign in signs)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0
