"""What the demo tells, step by step; each step checks what it says."""

import time

from gpushare import contract
from gpushare_cli.terminal import Colour
from tests.demo import admission, enforcing
from tests.demo.admission import QUOTA_MIB
from tests.demo.node import Node
from tests.demo.stage import Stage

CALM = "tts"
GREEDY = "notebook"
WITHIN_MIB = 3072
GREEDY_MIB = 9216


def tell(stage: Stage) -> None:
    """Perform the demo. Raises ``DemoError`` at the first thing that does not happen."""
    stage.terminal.say("gpu-share: two pods share one GPU. Webhook, enforcer, containers' processes and kill are real;")
    stage.terminal.say("the GPU is simulated, and this program plays the API server and the kubelet.")
    the_webhook_starts(stage)
    two_pods_are_rewritten(stage)
    both_run_on_one_gpu(stage)
    one_takes_too_much(stage)
    the_neighbour_goes_on(stage)
    the_record_holds(stage)
    stage.terminal.say()
    done = f"All of this happened, in {stage.seconds:.1f} s."
    stage.terminal.say(stage.terminal.paint(done, Colour.GREEN))


def the_webhook_starts(stage: Stage) -> None:
    stage.step("The webhook starts, with certificates of its own")
    stage.webhook = admission.start(stage.children, stage.folder)
    stage.observed(
        f"gpu-share certs made a CA and a pair; gpu-share webhook serves TLS 1.3 on port {stage.webhook.port}"
    )


def two_pods_are_rewritten(stage: Stage) -> None:
    stage.step(f"Two pods ask for {admission.MEMORY} and 25% of a GPU each; the webhook rewrites them")
    for name in (CALM, GREEDY):
        asked = admission.pod(name)
        began = time.perf_counter()
        after, patch = stage.webhook.mutate(asked)
        took = (time.perf_counter() - began) * 1000
        if name == CALM:
            stage.say("\n".join(admission.shown(asked, after, stage.terminal)))
        stage.need(bool(patch), f"pod {name} was not rewritten")
        stage.need(not stage.webhook.mutate(after)[1], f"rewriting pod {name} again changed it")
        stage.pods[name] = after
        stage.observed(f"{admission.NAMESPACE}/{name} admitted in {took:.0f} ms; sent again, nothing changes")
    claim = stage.pods[CALM]["spec"]["resourceClaims"][0]
    stage.need(claim["resourceClaimTemplateName"].startswith(contract.TEMPLATE_PREFIX), f"no claim template in {claim}")


def both_run_on_one_gpu(stage: Stage) -> None:
    stage.step("Both run on one simulated GPU, which the enforcer samples")
    stage.node = Node(stage.folder, stage.children)
    gpu = stage.node.gpu
    for line in enforcing.stand_ins(stage.node):
        stage.say(line)
    stage.containers[CALM] = stage.node.run(stage.pods[CALM], WITHIN_MIB)
    stage.containers[GREEDY] = stage.node.run(stage.pods[GREEDY], WITHIN_MIB, GREEDY_MIB)
    enforcing.checkpoint(stage.node, stage.containers.values())
    if stage.with_enforcer:
        stage.enforcer = enforcing.start(stage.node, stage.children)
        enforcing.wait_until_seen(stage)
        stage.say(enforcing.top(stage))
    both = " and ".join(f"{name} (pid {one.child.pid})" for name, one in stage.containers.items())
    stage.observed(f"{both} hold {WITHIN_MIB} MiB each of the {gpu.name}, within {QUOTA_MIB} MiB")


def one_takes_too_much(stage: Stage) -> None:
    stage.step(f"{GREEDY} takes {GREEDY_MIB} MiB: more than twice its quota")
    enforcing.grow(stage, stage.containers[GREEDY], GREEDY_MIB)
    began = time.monotonic()
    for kind, sentence in enforcing.EXPECTED.items():
        record = enforcing.wait_for_record(stage, kind, stage.containers[GREEDY])
        stage.observed(f"{time.monotonic() - began:4.1f} s  {kind:<8} {sentence(record)}")
    enforcing.wait_until_gone(stage, stage.containers[GREEDY])
    stage.say(enforcing.explain(stage, stage.containers[GREEDY]))


def the_neighbour_goes_on(stage: Stage) -> None:
    stage.step("The neighbour keeps its memory")
    calm = stage.containers[CALM]
    stage.need(calm.child.alive, f"{CALM} did not survive the kill of its neighbour")
    stage.need(stage.node.used_mib(calm.child.pid) == WITHIN_MIB, f"{CALM} lost its memory")
    stage.say(enforcing.top(stage))
    stage.observed(f"{CALM} (pid {calm.child.pid}) still holds its {WITHIN_MIB} MiB")


def the_record_holds(stage: Stage) -> None:
    stage.step("The kill is in the audit log, and an edit of the log is detected")
    code, output = enforcing.verify(stage.node.state)
    stage.need(code == 0, f"the audit log does not verify: {output}")
    stage.observed(f"gpu-share audit verify: {output.splitlines()[0]}")
    copy, line = enforcing.edited_copy(stage.node, stage.folder / "copy")
    code, output = enforcing.verify(copy)
    stage.need(code == 1 and f":{line}:" in output, f"an edit of line {line} was not noticed: {output}")
    stage.observed(f"a digit of line {line} of a copy changed: {output.splitlines()[0]}")
