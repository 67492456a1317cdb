"""Rows of the table of Reasons about a node: its GPUs, MPS, limits, kills and the enforcer itself. Pure."""

from typing import Final

from gpushare import contract
from gpushare.reason_row import Place, ReasonRow
from gpushare.reasons import Reason

_LOG: Final = (Place.LOG,)
_UNREADABLE: Final = (Place.POD_EVENT, Place.NODE_EVENT, Place.METRIC, Place.LOG)
_UNHEALTHY: Final = (Place.POD_EVENT, Place.NODE_EVENT, Place.TAINT, Place.METRIC, Place.LOG)
_TAINTED: Final = (Place.NODE_EVENT, Place.TAINT, Place.LOG)
_INCIDENT: Final = (Place.NODE_EVENT, Place.METRIC, Place.LOG)
_LIMIT: Final = (Place.CONDITION, Place.METRIC, Place.LOG)
_BAD_LIMIT: Final = (Place.POD_EVENT, *_LIMIT)
_KILL: Final = (Place.POD_EVENT, Place.AUDIT, Place.METRIC, Place.LOG)
_FAILED: Final = (Place.POD_EVENT, Place.METRIC, Place.LOG)

_GPUS: Final = (
    ReasonRow(
        reason=Reason.NVML_UNAVAILABLE,
        places=(
            Place.POD_EVENT, Place.NODE_EVENT, Place.RESIZE, Place.TAINT, Place.AUDIT, Place.METRIC, Place.LOG,
        ),
        meaning="NVML does not answer, so the enforcer cannot read the GPU. It kills nothing on a GPU it cannot read.",
        action="Run nvidia-smi on the node. The message has NVML's own error.",
    ),
    ReasonRow(
        reason=Reason.NVML_HUNG, places=_UNHEALTHY,
        meaning="An NVML call did not return in time: the driver hangs.",
        action="Look for NVRM messages in the node's kernel log. If it lasts, reset the GPU or reboot the node.",
    ),
    ReasonRow(
        reason=Reason.NVML_CRASHED, places=_UNHEALTHY,
        meaning="The enforcer's child process that calls NVML exited, as it does if NVIDIA's library crashes. The "
        "enforcer starts it again.",
        action="If it repeats, check the driver's installation and read the enforcer's log.",
    ),
    ReasonRow(
        reason=Reason.NVML_DENIED, places=_UNHEALTHY,
        meaning="NVML refuses the enforcer's calls: the enforcer lacks permission.",
        action="Run the enforcer as root, with access to /dev/nvidia*, as the chart does.",
    ),
    ReasonRow(
        reason=Reason.DRIVER_MISMATCH, places=_UNHEALTHY,
        meaning="The NVIDIA kernel module and the NVML library have different versions, for example after a driver "
        "upgrade.",
        action="Drain the node and reboot it: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data.",
    ),
    ReasonRow(
        reason=Reason.IMPLAUSIBLE_SAMPLE, places=_UNREADABLE,
        meaning="NVML returned values that cannot be true, such as a process with more memory than its GPU has. The "
        "enforcer discards the sample and kills nothing on that GPU meanwhile.",
        action="A single occurrence needs no action. If it lasts, compare with nvidia-smi and check the driver's "
        "version.",
    ),
    ReasonRow(
        reason=Reason.PROCESS_HIDDEN, places=_UNREADABLE,
        meaning="A process uses GPU memory and /proc does not show whose it is, so its memory counts for no container. "
        "Containers over quota without it are killed all the same.",
        action="Check hostPID: true of the enforcer, the hidepid option of /proc, and the limit of open files.",
    ),
    ReasonRow(
        reason=Reason.FOREIGN_CLAIM, places=(Place.METRIC, Place.LOG),
        meaning="A claim of NVIDIA's DRA driver gives no quota, or not to each container that uses it: it cannot be "
        "read, or it has a whole GPU.",
        action="Change the claim or the pod as the message says, or leave it: nobody is killed for it.",
    ),
    ReasonRow(
        reason=Reason.CONTAINER_UNKNOWN, places=(Place.METRIC, Place.LOG),
        meaning="A container of a pod with a share uses GPU memory, and the node does not show which container of the "
        "pod it is: its mount of the kubelet's file is gone. Its memory counts against what the pod's claims reserved.",
        action="Restart the pod. If every container is unknown, the kubelet's pods folder is not on the file system of "
        "kubeletRoot.",
    ),
    ReasonRow(
        reason=Reason.NOT_INITIAL_PID_NAMESPACE, places=_LOG,
        meaning="The enforcer is not in the host's pid namespace. In another namespace, NVML's pids would name "
        "other processes, so the enforcer does not start.",
        action="Set hostPID: true in the enforcer's pod, as the chart does.",
    ),
    ReasonRow(
        reason=Reason.GPU_LOST, places=_UNHEALTHY,
        meaning="The driver has lost the GPU, for example because it fell off the bus.",
        action="Reset the GPU or reboot the node. If it repeats, check the card.",
    ),
    ReasonRow(
        reason=Reason.ECC_UNCORRECTABLE, places=_TAINTED,
        meaning="The GPU has memory errors that only a reset repairs: a row remapping or page retirement is pending, "
        "or failed.",
        action="Drain the node and reset the GPU. If the remapping failed, replace the card.",
    ),
    ReasonRow(
        reason=Reason.CRITICAL_XID, places=_TAINTED,
        meaning="The driver reported a critical error (Xid) of the GPU. The GPU gets no new shares for about five "
        "minutes. Xid errors that programs cause appear in the log only.",
        action="Find the Xid number in the enforcer's log or the kernel log and look it up in NVIDIA's list of Xid "
        "errors.",
    ),
    ReasonRow(
        reason=Reason.CONTENDED, places=(Place.NODE_EVENT, Place.CHECK, Place.LOG),
        meaning="Another DRA driver or device plugin offers the GPU too. The enforcer excludes the GPU from its "
        "ResourceSlice.",
        action="Let only one driver offer the GPU: remove it from the other driver, or list the remaining GPUs in "
        f"the node annotation {contract.NODE_GPUS}.",
    ),
    ReasonRow(
        reason=Reason.DRIVER_UPGRADE, places=(Place.POD_EVENT, Place.NODE_EVENT, Place.METRIC, Place.LOG),
        meaning="The GPU Operator upgrades the node's GPU driver. The node's GPUs get no new shares, and no claim is "
        "prepared. Pods that share them are evicted, then MPS daemons and NVML are closed.",
        action="Wait: the GPUs are offered again once the upgrade has ended. If it lasts, read the node's label "
        "nvidia.com/gpu-driver-upgrade-state and the log of the driver's pod.",
    ),
    ReasonRow(
        reason=Reason.EVICTION_REFUSED, places=(Place.POD_EVENT, Place.LOG),
        meaning="The API server refuses to evict a pod for a driver upgrade, for example because of a "
        "PodDisruptionBudget. The enforcer asks again, at first after 5 s, later once a minute. The upgrade waits.",
        action="Let the PodDisruptionBudget allow a disruption, or delete the pod.",
    ),
    ReasonRow(
        reason=Reason.GPU_EXCLUDED, places=_LOG,
        meaning="The enforcer does not publish the GPU in its ResourceSlice, so it gets no new shares. The log line "
        "and gpu-share check show the cause.",
        action="Run gpu-share check and follow its hint.",
    ),
)  # fmt: skip

_MPS: Final = (
    ReasonRow(
        reason=Reason.MPS_UNREACHABLE, places=_UNHEALTHY,
        meaning="The MPS daemon of the GPU is missing, cannot be started or does not answer, or one that should stop "
        "has not stopped yet.",
        action="Read the enforcer's log and that of the MPS daemons. The enforcer tries to start the daemon again.",
    ),
    ReasonRow(
        reason=Reason.MPS_STARTED, places=_LOG,
        meaning="An MPS daemon started and serves its GPU. At level warning, the log line names the setting that could "
        "not be applied.",
    ),
    ReasonRow(
        reason=Reason.MPS_STOPPED, places=(Place.POD_EVENT, Place.LOG),
        meaning="The enforcer stopped an MPS daemon. As an Event: the node's MPS pod was replaced, and programs that "
        "started before the replacement cannot connect to the new MPS daemon.",
        action="Restart the container that the Event names.",
    ),
    ReasonRow(
        reason=Reason.MPS_LIMIT_NOT_APPLIED, places=_LOG,
        meaning="The MPS daemon reports another memory limit than the one that the enforcer set.",
        action="The enforcer sets the limit again. If it lasts, compare the driver's version with "
        "docs/design/hardware.md.",
    ),
    ReasonRow(
        reason=Reason.MPS_FAULT, places=(Place.NODE_EVENT, Place.TAINT, Place.METRIC, Place.LOG),
        meaning="A GPU fault of one client stopped the MPS server, or the server does not start. The server accepts "
        "no new client until its old clients have exited; the enforcer terminates them.",
        action="Find the program that caused the fault: the MPS log and the kernel log name it. Restart its pod and "
        "the pods that shared the server.",
    ),
    ReasonRow(
        reason=Reason.MPS_TAMPERED, places=_INCIDENT,
        meaning="Something changed a setting of the MPS daemon, such as the memory limit. The enforcer restored it.",
        action="Find the pod that has access to the daemon's control socket.",
    ),
    ReasonRow(
        reason=Reason.MPS_HUNG, places=_INCIDENT,
        meaning="The MPS daemon hung: a signal stopped it, its log pipe was full, or it did not answer. The "
        "enforcer resumed or restarted the daemon.",
        action="If it repeats, find the container that signals the daemon or fills its log pipe.",
    ),
    ReasonRow(
        reason=Reason.MPS_LOG, places=_LOG,
        meaning="The enforcer copied a line of the MPS daemon's or server's log to its own log, or cannot "
        "read the MPS log.",
        action="Only warnings matter. NVIDIA's MPS documentation explains the lines.",
    ),
    ReasonRow(
        reason=Reason.MPS_CONTROL_BLOCKED, places=(Place.NODE_EVENT, Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="The MPS daemon did not answer in time because an idle connection blocks its control socket. The "
        "enforcer closes such connections. In an audit record: the enforcer could not send terminate_client to MPS.",
        action="The log line names the pid that holds the connection, and its pod if it has one. If it repeats, "
        "delete that pod.",
    ),
    ReasonRow(
        reason=Reason.MODE_SELECTED, places=_LOG,
        meaning="The enforcer selected the sharing mode of the node's GPUs.",
    ),
    ReasonRow(
        reason=Reason.MODE_UNKNOWN, places=(Place.POD_EVENT, Place.NODE_EVENT, Place.METRIC, Place.LOG),
        meaning="The enforcer does not know the sharing mode of the node's GPUs, so it prepares no new claims there.",
        action=f"Correct the node's label {contract.NODE_MODE}, or remove it to use the chart's default.",
    ),
)  # fmt: skip

_LIMITS: Final = (
    ReasonRow(
        reason=Reason.LIMIT_BACKEND, places=_LOG,
        meaning="The enforcer selected what enforces the memory limits of a GPU (the limit backend), or found nothing "
        "that does.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_SET, places=_LOG,
        meaning="The enforcer set a container's memory limit in the driver.",
    ),
    ReasonRow(
        reason=Reason.IN_FORCE, places=_LIMIT,
        meaning="The container's limit is in force: the limit backend confirms it, and no observation contradicts "
        "it.",
    ),
    ReasonRow(
        reason=Reason.PER_PROCESS_ONLY, places=_LIMIT,
        meaning="The limit applies to each process of the container separately. Together the processes can use "
        "more, but the enforcer kills the container above its quota.",
        action="Use one process with a CUDA context in each container, or keep the sum of their GPU memory below "
        "the quota.",
    ),
    ReasonRow(
        reason=Reason.NOT_APPLIED, places=_BAD_LIMIT,
        meaning="The container runs without its limit, or with an older limit. Only kills above the quota protect "
        "other containers.",
        action="Restart the container, so that its processes start with the limit. If the limit backend is "
        "watch-only, no limit exists and no action is needed.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_ESCAPED, places=_BAD_LIMIT,
        meaning="A process of the container bypasses its limit: it is not an MPS client, changed its limit, or uses "
        "more memory than its limit allows.",
        action=f"Do not change {contract.MPS_MEMORY_LIMIT} or CUDA_VISIBLE_DEVICES in the program or its start "
        "script. The enforcer kills the container if it is over quota.",
    ),
    ReasonRow(
        reason=Reason.UNKNOWN, places=_LIMIT,
        meaning="The enforcer cannot verify now that the limit is in force: it cannot read the GPU or MPS, or the "
        "container uses no GPU memory yet.",
    ),
)  # fmt: skip

_QUOTAS: Final = (
    ReasonRow(
        reason=Reason.OVER_QUOTA, places=(Place.POD_EVENT, Place.RESIZE, Place.LOG),
        meaning="The container uses more GPU memory than its kill threshold (its quota and a tolerance). As the "
        "answer to a resize request: the container uses more than the new quota.",
        action="Free GPU memory within the grace period that the message names, or request more: gpu-share resize, "
        f"or a larger {contract.MEMORY}.",
    ),
    ReasonRow(
        reason=Reason.UNACCOUNTED_MEMORY, places=(Place.POD_EVENT, Place.CHECK, Place.METRIC),
        meaning="Memory of a GPU is in use and NVML lists it for no process: managed memory, or memory that only file "
        "descriptors hold. No new share gets it.",
        action="Close the descriptors that cuMemExportToShareableHandle made once the memory is released, also in "
        "processes without CUDA. gpu-share top in the enforcer's pod shows how much it is.",
    ),
    ReasonRow(
        reason=Reason.LENT, places=(Place.LOG,),
        meaning="The container holds GPU memory that nobody reserved, beyond its own reservation, in three samples.",
    ),
    ReasonRow(
        reason=Reason.RECLAIMED, places=(Place.POD_EVENT, Place.LOG),
        meaning="The container borrowed GPU memory that others have reserved since, and must give some back. If it "
        "does not within the seconds that the message names, the enforcer kills its processes.",
        action=f"Free as much GPU memory as the message names, or reserve more with {contract.MEMORY}.",
    ),
    ReasonRow(
        reason=Reason.TOO_MANY_CLIENTS, places=(Place.POD_EVENT,),
        meaning="The container has more MPS clients than its share includes, so other pods on the GPU may be unable "
        "to connect to MPS.",
        action="Use fewer processes with a CUDA context. The enforcer kills no process for this Reason.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_EXCEEDED, places=_KILL,
        meaning="The container is still over its quota after a kill: new processes appear faster than the enforcer "
        "kills them.",
        action="Stop the program in the container that restarts killed processes, or delete the pod.",
    ),
    ReasonRow(
        reason=Reason.BACK_UNDER_QUOTA, places=_KILL,
        meaning="The container freed GPU memory in time and is within its kill threshold (quota plus tolerance) again. "
        "The enforcer did not kill it.",
    ),
    ReasonRow(
        reason=Reason.QUOTA_REACHED, places=_FAILED,
        meaning="The container failed shortly after it had reached its quota: very likely a GPU out-of-memory error.",
        action=f"Request more GPU memory with {contract.MEMORY}, or reduce the memory use of the program.",
    ),
    ReasonRow(
        reason=Reason.GPU_FULL, places=_FAILED,
        meaning="The container failed while its GPU was full although it was within its quota: very likely a GPU "
        "out-of-memory error, because other processes used the rest of the GPU memory.",
        action="Restart the container. An operator runs gpu-share top -A to see the other users of the GPU.",
    ),
)  # fmt: skip

_KILLS: Final = (
    ReasonRow(
        reason=Reason.CLIENT_TERMINATED, places=(Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="MPS terminated the client: its pod is being deleted, or the enforcer is about to kill its process.",
    ),
    ReasonRow(
        reason=Reason.TERMINATE_FAILED, places=_KILL,
        meaning="MPS did not terminate the client. The enforcer has not signalled the client yet, because killing a "
        "connected client can stop the MPS server of other pods.",
        action="The enforcer tries again, and uses signals after three refusals. If it lasts, read the MPS log.",
    ),
    ReasonRow(
        reason=Reason.IDENTITY_CHANGED, places=_KILL,
        meaning="Before the signal, the enforcer checked the process again: its pid belongs to another process, it "
        "uses no GPU memory any more, or the kill of other processes is enough. The enforcer did not signal this "
        "process.",
    ),
    ReasonRow(
        reason=Reason.ALREADY_EXITED, places=_KILL,
        meaning="The process exited by itself before the enforcer sent a signal or an MPS command.",
    ),
    ReasonRow(
        reason=Reason.KILLED, places=_KILL,
        meaning="The enforcer killed processes of a container that was over its quota. The Event says whether the "
        "container is within its kill threshold (quota plus tolerance) again, or why the enforcer stopped early.",
        action=f"Request more GPU memory with {contract.MEMORY}, or reduce the memory use of the program. An "
        "operator sees the record with gpu-share audit show -A.",
    ),
    ReasonRow(
        reason=Reason.UNKILLABLE, places=_KILL,
        meaning="The enforcer could not signal a process, or the process did not exit after SIGKILL, for example "
        "because it waits inside the driver. The process keeps its GPU memory.",
        action="Look for driver errors in the kernel log. Usually only a GPU reset or a reboot of the node helps.",
    ),
    ReasonRow(
        reason=Reason.BREAKER_OPEN, places=(Place.POD_EVENT, Place.METRIC, Place.LOG),
        meaning="The circuit breaker is open: an operator stopped all kills of the node with the file "
        "breaker-open.json. The enforcer kills nothing until the breaker is closed.",
        action="An operator closes it: gpu-share breaker --node NODE --reset.",
    ),
    ReasonRow(
        reason=Reason.KILL_RATE_LIMITED, places=(Place.POD_EVENT,),
        meaning="The container is due to be killed, but the enforcer killed too many containers of this node in the "
        "last minute. The kill waits until then, or until the namespace has no budget any more.",
        action="Free GPU memory, or request more.",
    ),
    ReasonRow(
        reason=Reason.PROTECTED, places=_LOG,
        meaning="The process belongs to no container (a process of the node or of MPS), or it is the enforcer. The "
        "enforcer never kills it.",
    ),
    ReasonRow(
        reason=Reason.NOT_ENFORCING, places=_KILL,
        meaning="The kill was cancelled: the policy of the namespace is now warn, the claim no longer exists, or "
        "the circuit breaker is open.",
    ),
)  # fmt: skip

_ENFORCER: Final = (
    ReasonRow(
        reason=Reason.AUDIT_UNWRITABLE, places=_KILL,
        meaning="The enforcer cannot write the audit log, or another of its files, to the node's disk. Without a "
        "durable audit record it kills nothing.",
        action="Free space on the node's disk, or replace the disk. The log line has the error.",
    ),
    ReasonRow(
        reason=Reason.AUDIT_RECORD_LOST, places=(Place.NODE_EVENT, Place.METRIC, Place.LOG),
        meaning="The ResourceSlice holds the hash of a record that the node's audit log does not have: the log was "
        "truncated, replaced or started again.",
        action="Find out who changed the log. Then run the command in the message: it removes the "
        "anchor (a record's hash), and the enforcer writes a new one.",
    ),
    ReasonRow(
        reason=Reason.AUDIT_BROKEN, places=(Place.METRIC, Place.LOG),
        meaning="The enforcer verifies its own audit log once a day, and within seconds when somebody changes a file "
        "of it. A record was altered or removed, or the log could not be read.",
        action="Run gpu-share audit verify in the enforcer. Copy the log away and find out who changed it.",
    ),
    ReasonRow(
        reason=Reason.RECOVERED, places=(Place.NODE_EVENT, Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="An earlier problem of a GPU, MPS, the disk or the circuit breaker has ended. In the audit "
        "log: the "
        "enforcer cut off an incomplete last line, left by a crash or a full disk.",
    ),
    ReasonRow(
        reason=Reason.INTERRUPTED, places=(Place.AUDIT, Place.LOG),
        meaning="The enforcer exited before it knew the outcome of a kill. Or the enforcer could not read its saved "
        "grace periods, and starts them again.",
    ),
    ReasonRow(
        reason=Reason.CHECKPOINT_UNREADABLE, places=(Place.METRIC, Place.LOG),
        meaning="The enforcer cannot read a file of quotas or of a prepared claim, or a newer release wrote one of its "
        "files. The last valid quotas stay in force.",
        action="If the message names a newer release, do what it says. Otherwise check the node's disk. The enforcer "
        "writes checkpoint.json (the quotas) again with the next claim. If the message names a file UID.json or "
        "UID.ending, restart the enforcer. If the message comes back, delete the pod for which the ResourceClaim with "
        "this UID is reserved, and then the file.",
    ),
    ReasonRow(
        reason=Reason.ENFORCER_STARTED, places=_LOG,
        meaning="The enforcer started. The log line lists its settings or its capabilities.",
    ),
    ReasonRow(
        reason=Reason.ENFORCER_STOPPED, places=_LOG,
        meaning="The enforcer stopped normally.",
    ),
)  # fmt: skip

ROWS: Final = (*_GPUS, *_MPS, *_LIMITS, *_QUOTAS, *_KILLS, *_ENFORCER)
