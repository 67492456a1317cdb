"""The example of each framework starts by its rule on five cards, with the variables that the driver would write."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import variables
from enforcer.dra.program_view import with_view
from enforcer.nvml.types import Gpu
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import device_name
from gpushare import contract
from gpushare.cuda_context import context_mib
from gpushare.memory_fraction import Reserve, budget
from gpushare.namespace_policy import NamespacePolicy
from tests.fakes.gpu.machine import MachineGpu
from tests.support.framework_table import MIB, TABLE, Framework, Program
from tests.support.frameworks import CARDS
from tests.unit.enforcer.dra.objects import NODE, bound, claim, namespace
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

FOLDER = Path(__file__).parents[3] / "examples" / "frameworks"
LIMIT = 8192
Object = dict[str, Any]
NAME = re.compile(r"\w+")


def example(framework: Framework) -> Object:
    made: Object = yaml.safe_load((FOLDER / framework.example).read_text())
    return made if made["kind"] == "Pod" else made["spec"]["template"]


def admitted(framework: Framework) -> Object:
    """As it comes from the webhook, without a warning about its framework."""
    decision = mutate_pod(example(framework), policy=NamespacePolicy(), settings=Settings())
    assert [each for each in decision.warnings if "may run as root" not in each] == []
    made: Object = dict(decision.pod)
    return bound({**made, "metadata": {"name": framework.example.removesuffix(".yaml"), **made["metadata"]}})


def gpus(card: MachineGpu, number: int) -> list[Gpu]:
    return [
        Gpu(
            uuid=f"{card.uuid[:-1]}{index}", index=index, minor=index, model=card.name, memory_mib=card.memory_mib,
            reserved_mib=card.reserved_mib, compute_capability=(8, 0), pci_bus_id="", driver_version="570",
            cuda_version=(12, 8), sms=card.sms,
        )
        for index in range(number)
    ]  # fmt: skip


def environment(pod: Object, card: MachineGpu, mode: Mode) -> dict[str, str]:
    number = int(pod["metadata"]["annotations"].get(contract.GPUS, "1"))
    devices = {device_name(gpu): gpu for gpu in gpus(card, number)}
    (request,) = (each["name"] for each in pod["spec"]["containers"])
    ask = PrepareRequest(claim(pod, next(iter(devices)), **{request: " ".join(devices)}), pod, namespace())
    found = with_view(compute_limits(NODE, ask, devices), ask, devices.values(), {})
    shared = found.shared_by(dict.fromkeys((gpu.uuid for gpu in devices.values()), mode))
    return variables(shared, shared.of(request), mps=mode is Mode.MPS)


@pytest.mark.parametrize("framework", TABLE, ids=lambda each: each.name)
def test_every_example_starts_on_every_card(framework: Framework) -> None:
    pod = admitted(framework)
    (container,) = pod["spec"]["containers"]
    text = " ".join([*container.get("command", []), *container.get("args", [])])
    assert framework.line in text
    for card in CARDS:
        for mode in (Mode.MPS, Mode.TIME_SLICING):
            found = environment(pod, card, mode)
            mine = budget(
                LIMIT,
                card.usable_mib,
                Reserve(),
                context_mib=context_mib(card.sms),
                watch_only=mode is Mode.TIME_SLICING,
            )
            assert (found[contract.USABLE_MIB], found[contract.MEMORY_FRACTION], found[contract.FREE_FRACTION]) == (
                str(mine.usable_mib), mine.of_total, mine.of_free,
            )  # fmt: skip
            free = (mine.total_mib if mine.watch_only else mine.limit_mib) - context_mib(card.sms)
            program = Program(budget=mine, free=free * MIB)
            assert all(rule.size(program).start <= program.free for rule in framework.rules)
            read = {word for word in NAME.findall(text) if word.startswith("GPU_SHARE_")}
            assert read <= found.keys(), "whatever it reads is there"
            assert {setting.key for setting in framework.settings if not setting.asked} <= found.keys()
