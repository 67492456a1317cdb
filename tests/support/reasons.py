"""``python -m tests.support.reasons`` writes docs/reference/reasons.md from the table of Reasons in code."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpushare.reason_row import Place, ReasonRow
from gpushare.reason_table import TABLE

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "reasons.md"
HEAD: Final = """# Reasons

<!-- python -m tests.support.reasons -->

Refusals, Events, conditions, metrics, audit records and log lines have a Reason: one word with the same meaning
everywhere. Search this page for the word, or run `gpu-share reasons`; `gpu-share reasons OverQuota` prints one of them.
The admission policies of the chart refuse with reasons of Kubernetes, `Forbidden` and `Invalid`.

| where it appears | how to see it |
|---|---|
"""
LOOK: Final = {
    Place.ADMISSION: "`kubectl apply` prints `Error from server (Reason)`; for a manifest, `gpu-share explain` and "
    "`gpu-share inject`",
    Place.POD_EVENT: "`kubectl describe pod`, `gpu-share explain NAMESPACE/POD`; the log of the pod's container "
    "`gpu-share` has the enforcer's",
    Place.NODE_EVENT: "`kubectl get events -n default`",
    Place.CONDITION: "`kubectl get resourceclaim -o yaml`, under `status.devices`",
    Place.RESIZE: "`gpu-share resize`; in the claim, `status.devices[].data.resizes`",
    Place.CHECK: "`gpu-share check`",
    Place.TAINT: "`kubectl get resourceslices -o yaml`, in the device's `taints`",
    Place.AUDIT: "`gpu-share audit show`",
    Place.METRIC: "label `reason`, and label `state` of `gpu_share_limit_state` ([metrics](metrics.md))",
    Place.LOG: "field `reason` in the logs of the webhook, the enforcer and the certificates' Deployment",
}
HEADS: Final = {
    Place.ADMISSION: "A pod is admitted, changed or refused",
    Place.POD_EVENT: "A pod has an Event",
    Place.NODE_EVENT: "A node has an Event",
    Place.CONDITION: "A claim has a condition",
    Place.AUDIT: "The audit log has a record",
    Place.LOG: "A log has a line",
}
"""The sections: each Reason is in the first of its places that has one."""


def page() -> str:
    """Return docs/reference/reasons.md."""
    return HEAD + "\n".join([*(f"| {place} | {how} |" for place, how in LOOK.items()), *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for place, title in HEADS.items():
        yield from ("", f"## {title}")
        for row in TABLE:
            if next(each for each in row.places if each in HEADS) is place:
                yield from ("", *_entry(row))


def _entry(row: ReasonRow) -> Iterable[str]:
    action = ("", f"What to do: {row.action}") if row.action else ()
    return f"### {row.reason}", "", row.meaning, *action, "", f"Appears in: {', '.join(row.places)}."


if __name__ == "__main__":
    PAGE.write_text(page())
