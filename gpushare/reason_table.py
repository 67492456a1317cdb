"""Every Reason as one table: what it means, what to do, where it appears. Pure.

docs/reference/reasons.md and ``gpu-share reasons`` come from it. A new Reason is a value in ``gpushare.reasons`` and a
row here or, if it is about a node, in ``gpushare.reason_table_node``.
"""

from typing import Final

from gpushare import contract
from gpushare.reason_row import Place, ReasonRow
from gpushare.reason_table_node import ROWS as NODE_ROWS
from gpushare.reasons import Reason

_UNCHANGED: Final = (Place.ADMISSION, Place.METRIC)
"""The webhook does not log pods that it admits unchanged."""
_ADMISSION_LOG: Final = (Place.ADMISSION, Place.METRIC, Place.LOG)
_ADMISSION_OR_CLAIM: Final = (Place.ADMISSION, Place.POD_EVENT, Place.METRIC, Place.LOG)
"""Also for pods that exist: the webhook refuses their claim template, or the enforcer does not prepare their claim."""
_ADMISSION_CLAIM_OR_RESIZE: Final = (Place.ADMISSION, Place.POD_EVENT, Place.RESIZE, Place.METRIC, Place.LOG)
_LOG: Final = (Place.LOG,)
_PREPARE: Final = (Place.POD_EVENT, Place.METRIC, Place.LOG)

_ADMISSION: Final = (
    ReasonRow(
        reason=Reason.APPLIED, places=_ADMISSION_LOG,
        meaning="The webhook changed the pod so that its containers get shares of a GPU.",
    ),
    ReasonRow(
        reason=Reason.UNCHANGED, places=_UNCHANGED,
        meaning="The webhook had nothing to change: the pod has its share already, or the request is an update that "
        "does not concern shares.",
    ),
    ReasonRow(
        reason=Reason.NO_SHARE, places=_UNCHANGED,
        meaning="The pod has no annotation that asks for a share, so the webhook does not change it.",
        action=f"If the pod is meant to share a GPU, add the annotation {contract.MEMORY}.",
    ),
    ReasonRow(
        reason=Reason.MIRROR_POD, places=_UNCHANGED,
        meaning="The pod is the mirror of a static pod. The kubelet runs it without admission, so it gets no share.",
        action="Create the pod through the API server instead.",
    ),
    ReasonRow(
        reason=Reason.OWN_CLAIM, places=_UNCHANGED,
        meaning=f"The containers use ResourceClaims of device class {contract.DEVICE_CLASS} that a user wrote. The "
        "webhook adds no claim of its own.",
        action="If the webhook is meant to make the claim, remove spec.resourceClaims and keep the annotations.",
    ),
    ReasonRow(
        reason=Reason.NOT_A_POD, places=_UNCHANGED,
        meaning="The API server sent the webhook an object that is not a pod, or an operation that cannot concern a "
        "share. The webhook admits it unchanged.",
        action="Compare the rules of the MutatingWebhookConfiguration with those of the chart, which name pods only.",
    ),
    ReasonRow(
        reason=Reason.INVALID_QUANTITY, places=_ADMISSION_CLAIM_OR_RESIZE,
        meaning="An amount, a number or a list in an annotation cannot be parsed.",
        action="Write what the message suggests, for example 4Gi of memory, 25% of compute or 5s.",
    ),
    ReasonRow(
        reason=Reason.BELOW_MINIMUM, places=_ADMISSION_CLAIM_OR_RESIZE,
        meaning="The requested memory is below the smallest share of this cluster, or smaller than a CUDA context on "
        "the GPU that the pod was placed on.",
        action="Ask for at least the minimum that the message names.",
    ),
    ReasonRow(
        reason=Reason.ABOVE_MAXIMUM, places=_ADMISSION_CLAIM_OR_RESIZE,
        meaning="The requested memory or compute is above the namespace's maximum, above what one GPU has or, for a "
        "resize, above what the claim reserved.",
        action="Ask for less, or have a cluster operator raise the maximum that the message names, such as "
        f"{contract.MAX_MEMORY}. To resize beyond the claim, create the pod again with larger annotations.",
    ),
    ReasonRow(
        reason=Reason.INVALID_VALUE, places=_ADMISSION_OR_CLAIM,
        meaning="An annotation, a label, a flag or a file has a value that gpu-share does not accept.",
        action="Write one of the values that the message names. gpu-share annotations lists the values of each "
        "annotation.",
    ),
    ReasonRow(
        reason=Reason.MEMORY_MISSING, places=_ADMISSION_LOG,
        meaning="A container asks for a share without an amount of memory, and its namespace has no default.",
        action=f"Add {contract.MEMORY}, or {contract.MEMORY_OF}CONTAINER for the container of that name.",
    ),
    ReasonRow(
        reason=Reason.UNKNOWN_ANNOTATION, places=_ADMISSION_LOG,
        meaning=f"The pod has an annotation of {contract.GROUP} that does not exist, or that belongs on another "
        "object.",
        action="Correct the key as the message suggests. To list all keys, run gpu-share annotations.",
    ),
    ReasonRow(
        reason=Reason.UNKNOWN_CONTAINER, places=(Place.ADMISSION, Place.RESIZE, Place.METRIC, Place.LOG),
        meaning="An annotation names a container that the pod does not have, or a resize request names a container "
        "without a share.",
        action="Write the name of a container that the message lists.",
    ),
    ReasonRow(
        reason=Reason.CONFLICTS_WITH_SHARE, places=_ADMISSION_OR_CLAIM,
        meaning="A field of the pod cannot be combined with a share because it bypasses the limit or reaches the "
        "host, for example privileged: true, hostPID, a host path with files of node services, or a GPU of another "
        "device plugin.",
        action="Change the field that the message names.",
    ),
    ReasonRow(
        reason=Reason.RESERVED_NAME, places=_ADMISSION_LOG,
        meaning="The pod uses a name that is reserved for gpu-share (a container, a volume, a claim or a "
        "variable), or "
        "another webhook changed gpu-share's sidecar container in a way that is not allowed.",
        action="Rename or remove the object that the message names. If another webhook changed the sidecar, exclude "
        f"the container {contract.SIDECAR} from that webhook.",
    ),
    ReasonRow(
        reason=Reason.TOO_MANY_CONTAINERS, places=_ADMISSION_LOG,
        meaning="The pod has more containers, or more containers with a share, than one ResourceClaim can serve.",
        action="Split the pod. The message has the maximum.",
    ),
    ReasonRow(
        reason=Reason.INVALID_POD, places=_ADMISSION_OR_CLAIM,
        meaning="A field of the pod has a type or shape that the Kubernetes API does not accept, or two containers "
        "have one name.",
        action="Correct the field that the message names.",
    ),
    ReasonRow(
        reason=Reason.INVALID_NAMESPACE, places=_ADMISSION_OR_CLAIM,
        meaning="The annotations of the namespace cannot be parsed or contradict each other. The namespace gets no new "
        "shares until they are corrected.",
        action="A cluster operator corrects the annotation of the namespace that the message names.",
    ),
    ReasonRow(
        reason=Reason.BAD_REQUEST, places=_ADMISSION_OR_CLAIM,
        meaning="The webhook or the DRA driver got a call that it cannot parse.",
        action="Find the caller: only the API server calls the webhook, and only the kubelet calls the driver.",
    ),
    ReasonRow(
        reason=Reason.TOO_LARGE, places=_ADMISSION_OR_CLAIM,
        meaning="A request, or a list in the pod, has more entries or bytes than gpu-share reads. In the enforcer's "
        "log: more Events or statuses of claims wait to be written than the queue holds.",
        action="If the message names a list, shorten it. If it says that writes wait, find out why the API server "
        "is slow: only those Events and statuses are missing, and the pods keep their shares.",
    ),
    ReasonRow(
        reason=Reason.NAMESPACE_UNKNOWN, places=_ADMISSION_OR_CLAIM,
        meaning="The webhook does not have the namespace's policy: the namespace has not opted in, or the webhook "
        "cannot read it now.",
        action=f"Label the namespace {contract.NAMESPACE_LABEL}=true. If it has the label, check that the webhook "
        "reaches the API server, and try again.",
    ),
    ReasonRow(
        reason=Reason.INTERNAL, places=(Place.ADMISSION, Place.POD_EVENT, Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="An operation failed for a cause that has no Reason of its own, often a bug in gpu-share.",
        action="Read the line with this Reason in the component's log. Report it if it has a traceback.",
    ),
)  # fmt: skip

_TEMPLATES: Final = (
    ReasonRow(
        reason=Reason.TEMPLATE_CREATED, places=_LOG,
        meaning="The webhook created the ResourceClaimTemplate that an admitted pod names.",
    ),
    ReasonRow(
        reason=Reason.TEMPLATE_DELETED, places=_LOG,
        meaning="The webhook deleted a ResourceClaimTemplate that no pod needs any more.",
    ),
    ReasonRow(
        reason=Reason.TEMPLATE_MISMATCH, places=_LOG,
        meaning="A pod names a ResourceClaimTemplate of gpu-share that does not match the pod's own annotations. "
        "The webhook does not create it, and the pod stays Pending.",
        action="Delete the pod and create it without spec.resourceClaims: the webhook adds the right entry.",
    ),
    ReasonRow(
        reason=Reason.TEMPLATE_CONFLICT, places=_ADMISSION_LOG,
        meaning="A ResourceClaimTemplate with other content has the name that the webhook needs for the pod's claim.",
        action="Delete that ResourceClaimTemplate. The webhook creates the right one.",
    ),
)  # fmt: skip

_CERTIFICATES: Final = (
    ReasonRow(
        reason=Reason.CERTIFICATE_RENEWED, places=_LOG,
        meaning="The certificate rotation (Deployment gpu-share-certs) issued a new serving certificate, or "
        "the webhook loaded one.",
    ),
    ReasonRow(
        reason=Reason.CERTIFICATE_REJECTED, places=_LOG,
        meaning="gpu-share does not use a certificate or key: it is damaged, expired, not valid yet, or the two do "
        "not match. The webhook keeps the last valid pair. After the expiry of that pair the API server rejects the "
        "webhook's certificate.",
        action="If gpu-share issues the certificates, its next rotation replaces the pair. Otherwise correct the "
        "Secret or folder that the log line names.",
    ),
    ReasonRow(
        reason=Reason.CERTIFICATE_CURRENT, places=_LOG,
        meaning="The certificates need no change now. The log line says why.",
    ),
    ReasonRow(
        reason=Reason.BUNDLE_PUBLISHED, places=_LOG,
        meaning="Rotation wrote the CA bundle to the webhook configuration, or as ca.crt to the Secret or "
        "folder of the serving certificate.",
    ),
    ReasonRow(
        reason=Reason.AUTHORITY_ADDED, places=_LOG,
        meaning="Rotation created the next CA. Rotation publishes it in the CA bundle before it signs a certificate.",
    ),
    ReasonRow(
        reason=Reason.AUTHORITY_SWITCHED, places=_LOG,
        meaning="Rotation switched to the next CA, which now signs the serving certificates.",
    ),
    ReasonRow(
        reason=Reason.AUTHORITY_DROPPED, places=_LOG,
        meaning="Rotation removed an old CA from the bundle: the CA, or the last certificate that it signed, has "
        "expired.",
    ),
)  # fmt: skip

_CLAIMS: Final = (
    ReasonRow(
        reason=Reason.CLAIM_PREPARED, places=(Place.CONDITION, Place.LOG),
        meaning="The enforcer prepared the claim: the pod's containers may use their shares.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_UNPREPARED, places=_LOG,
        meaning="The enforcer unprepared the claim because the kubelet asked for it.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_UNKNOWN, places=(Place.POD_EVENT, Place.RESIZE, Place.METRIC, Place.LOG),
        meaning="The claim does not exist, is not allocated or not prepared, or has another pod, node or device "
        "than expected.",
        action="The kubelet tries again. If it lasts, delete the pod so that it is scheduled again.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_MISMATCH, places=(Place.POD_EVENT, Place.RESIZE, Place.METRIC, Place.LOG),
        meaning="The limits of the containers do not fit the claim: their sum is above what the claim reserved, or "
        "containers with different limits share one request of the claim.",
        action="Delete the pod and create it again with the amounts in its annotations. In a claim written by hand, "
        "request more, or give each container its own request.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_IN_USE, places=(Place.POD_EVENT, Place.METRIC),
        meaning="The claim is prepared for another pod. This pod has a quota of 0 MiB, and the enforcer kills its "
        "containers that use GPU memory.",
        action="Give each pod a claim of its own, by annotations or a ResourceClaimTemplate.",
    ),
    ReasonRow(
        reason=Reason.COMPUTE_SHARED, places=(Place.POD_EVENT,),
        meaning="Of a container that reserves compute: others on its GPU may use more than what is left, because they "
        "reserved none, started before it, or the operator overcommits compute. Of a container that reserves none: its "
        "cap, which lasts as long as its pod.",
        action="Reserve compute for the containers that need it, or let operators set webhook.defaultCompute. "
        "A pod that is created again gets a new cap.",
    ),
    ReasonRow(
        reason=Reason.NOT_OPTED_IN, places=_PREPARE,
        meaning="The claim holds a GPU in a namespace that has not opted in. The enforcer does not prepare it.",
        action=f"A cluster operator labels the namespace {contract.NAMESPACE_LABEL}=true.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_UNSUPPORTED, places=_PREPARE,
        meaning="The claim uses a GPU in a way that gpu-share does not support, for example adminAccess or several "
        "GPUs in one request under MPS.",
        action="Change the claim as the message says, and create the pod again.",
    ),
    ReasonRow(
        reason=Reason.CLAIM_CLEANED_UP, places=_LOG,
        meaning="The enforcer removed a claim, or files of a claim, whose pod is gone. The kubelet did not ask to "
        "unprepare the claim.",
    ),
    ReasonRow(
        reason=Reason.FILES_UNWRITABLE, places=_PREPARE,
        meaning="The enforcer cannot write a file that a claim needs, in its state folder or in the node's CDI folder.",
        action="Free space on the node's disk, or make the folder that the message names writable. The kubelet tries "
        "again.",
    ),
    ReasonRow(
        reason=Reason.GPU_MEMORY_IN_USE, places=_PREPARE,
        meaning="The share does not fit on its GPU yet: other processes, possibly of terminating pods, use the memory.",
        action="Wait: the kubelet tries again. If it lasts, delete the pod so that it is scheduled again.",
    ),
    ReasonRow(
        reason=Reason.TOO_MANY_KILLS, places=_PREPARE,
        meaning="The namespace used up its budget on a GPU of this node: its containers used more than all of them "
        "reserved, too often or too much. The enforcer delays new claims of the namespace.",
        action="Let the namespace's pods use less GPU memory, or ask for more. The kubelet tries again.",
    ),
    ReasonRow(
        reason=Reason.RESIZED, places=(Place.POD_EVENT, Place.RESIZE, Place.LOG),
        meaning="The enforcer changed the quota of a running container, or the container had that quota already. The "
        "message says if the old limit still holds for a process.",
    ),
    ReasonRow(
        reason=Reason.RESIZE_REFUSED, places=(Place.POD_EVENT,),
        meaning="The enforcer did not change the quota of a running container.",
        action="Read the message for the possible quotas. gpu-share resize shows the Reason of the enforcer's "
        "answer.",
    ),
    ReasonRow(
        reason=Reason.API_UNREACHABLE, places=_PREPARE,
        meaning="A request to the API server failed: the API server did not answer or refused it.",
        action="Read the API server's answer in the message. Check the network and the RBAC rules of the component.",
    ),
    ReasonRow(
        reason=Reason.DRIVER_REGISTERED, places=_LOG,
        meaning="The kubelet registered the DRA driver.",
    ),
    ReasonRow(
        reason=Reason.DRIVER_NOT_REGISTERED, places=(Place.METRIC, Place.LOG),
        meaning="The kubelet did not register the DRA driver, does not answer the enforcer, or lost the driver's "
        "socket, which the enforcer creates again.",
        action="If it lasts, read the kubelet's log and check that the chart's value kubeletRoot is the kubelet's "
        "folder.",
    ),
    ReasonRow(
        reason=Reason.CONFLICT, places=_LOG,
        meaning="Two processes use something that only one process may use: the state directory of an enforcer, or "
        "the certificate store.",
        action="During an update, wait. If it lasts, stop the second process, which the message names.",
    ),
)  # fmt: skip

TABLE: Final = (*_ADMISSION, *_TEMPLATES, *_CERTIFICATES, *_CLAIMS, *NODE_ROWS)
BY_REASON: Final = {row.reason: row for row in TABLE}
