import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import NODE, claim, namespace, pod
from tests.unit.enforcer.made import DEVICE, GPU
from tests.unit.enforcer.test_loop import card


@pytest.mark.parametrize(
    ("memory", "compute", "said"),
    [
        (
            "512Mi",
            None,
            r"container model has a share of 512Mi, but a CUDA context alone takes about 619Mi of it on .*",
        ),
        ("618Mi", None, r"; ask for 832Mi or more, in gpu-share.io/memory or in the claim"),
        ("512Mi", "80%", r"with 80% of its compute; ask for 704Mi or more"),
        ("619Mi", None, ""),
        ("512Mi", "50%", ""),
    ],
)
def test_a_share_that_is_smaller_than_a_context_of_its_gpu_is_refused(
    memory: str, compute: str | None, said: str
) -> None:
    made = pod("tts", {contract.MEMORY: memory} | ({contract.COMPUTE: compute} if compute else {}))
    h100 = {DEVICE: card(GPU, 0)._replace(sms=132)}
    ask = PrepareRequest(claim(made), made, namespace())
    if not said:
        assert compute_limits(NODE, ask, h100).limits
        return
    with pytest.raises(PrepareError, match=said) as refused:
        compute_limits(NODE, ask, h100)
    assert refused.value.reason is Reason.BELOW_MINIMUM
    unknown = {DEVICE: card(GPU, 0)._replace(sms=0)}
    assert compute_limits(NODE, ask, unknown).limits, "where NVML does not say, nothing is known to be too small"
