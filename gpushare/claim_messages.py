"""Messages about a pod that uses a claim which its node prepared for another pod. Pure.

A claim's memory is promised once, to the pod it was prepared for, and the kubelet does not ask again before the last
pod that uses the claim has ended.
"""

from typing import Final

ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that use nothing any more."""


def claim_in_use_message(claim: str, first: str, who: str, *, gone: bool) -> str:
    """Say whose a claim is, what that means for another pod, and what to do.

    Args:
        claim: name of the ResourceClaim.
        first: name of the pod it was prepared for.
        who: who may hold nothing of it, as a clause.
        gone: whether that pod has ended.
    """
    if gone:
        return (
            f"ResourceClaim {claim} was prepared for pod {first}, which has ended; the kubelet keeps it prepared until "
            f"no pod uses it: {who}; delete this pod, wait until it is gone, and create it again: the kubelet then "
            "prepares the claim for the new pod"
        )
    return (
        f"pod {first} uses ResourceClaim {claim}, and no other pod may use GPU memory of this claim, "
        "even after "
        f"{first} has ended: {who}; delete this pod and create it again with a ResourceClaim of its "
        "own or a "
        "resourceClaimTemplateName"
    )
