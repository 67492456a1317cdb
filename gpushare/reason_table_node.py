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
        meaning="A call to NVML did not return in time: the driver hangs.",
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
        meaning="NVML refuses the enforcer's calls for want of permission.",
        action="Run the enforcer as root, with access to /dev/nvidia*, as the chart does.",
    ),
    ReasonRow(
        reason=Reason.DRIVER_MISMATCH, places=_UNHEALTHY,
        meaning="The kernel module and the NVML library are of different versions, as after an upgrade of the driver.",
        action="Restart the enforcer's pod. If it lasts, reboot the node.",
    ),
    ReasonRow(
        reason=Reason.IMPLAUSIBLE_SAMPLE, places=_UNREADABLE,
        meaning="NVML returned values that cannot be true, such as a process with more memory than its GPU has. The "
        "enforcer discards the sample and kills nothing on that GPU meanwhile.",
        action="A single one passes. If it lasts, compare with nvidia-smi and check the driver's version.",
    ),
    ReasonRow(
        reason=Reason.PROCESS_HIDDEN, places=_UNREADABLE,
        meaning="A process uses GPU memory and /proc does not show it, so the enforcer cannot find its container.",
        action="Check hostPID: true of the enforcer, the hidepid option of /proc, and the limit of open files.",
    ),
    ReasonRow(
        reason=Reason.NOT_INITIAL_PID_NAMESPACE, places=_LOG,
        meaning="The enforcer is not in the host's pid namespace. NVML's pids would mean other processes there, so the "
        "enforcer does not start.",
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
        "minutes. The log also has errors that programs cause, which do not count.",
        action="Find the number in the enforcer's or the kernel's log and look it up in NVIDIA's list of Xid errors.",
    ),
    ReasonRow(
        reason=Reason.CONTENDED, places=(Place.NODE_EVENT, Place.CHECK, Place.LOG),
        meaning="Another DRA driver or device plugin offers the GPU too. The enforcer excludes it from its "
        "ResourceSlice.",
        action=f"Let one of them offer it: take it from the other, or set the node annotation {contract.NODE_GPUS} to "
        "the other GPUs.",
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
        "and gpu-share check have the cause.",
        action="Follow the hint of gpu-share check.",
    ),
)  # fmt: skip

_MPS: Final = (
    ReasonRow(
        reason=Reason.MPS_UNREACHABLE, places=_UNHEALTHY,
        meaning="The MPS daemon of the GPU is missing, cannot be started or does not answer.",
        action="Read the enforcer's log and that of the MPS daemons. The enforcer tries to start the daemon again.",
    ),
    ReasonRow(
        reason=Reason.MPS_STARTED, places=_LOG,
        meaning="An MPS daemon started and serves its GPU. As a warning, the line says what the daemon lacks.",
    ),
    ReasonRow(
        reason=Reason.MPS_STOPPED, places=(Place.POD_EVENT, Place.LOG),
        meaning="An MPS daemon was stopped. As an Event: the node's MPS pod was replaced, and programs that started "
        "before cannot reach MPS.",
        action="Restart the container that the Event names.",
    ),
    ReasonRow(
        reason=Reason.MPS_LIMIT_NOT_APPLIED, places=_LOG,
        meaning="The MPS daemon reports another memory limit than the one that the enforcer set.",
        action="The enforcer sets it again. If it lasts, compare the driver's version with docs/hardware.md.",
    ),
    ReasonRow(
        reason=Reason.MPS_FAULT, places=(Place.NODE_EVENT, Place.TAINT, Place.METRIC, Place.LOG),
        meaning="A GPU fault of one client stopped the MPS server, or the server does not come up. It accepts no new "
        "client until its old clients are gone; the enforcer terminates them.",
        action="Find the program that caused the fault: the MPS log and the kernel's log name it. Its pod needs a "
        "restart, as do those that shared the server.",
    ),
    ReasonRow(
        reason=Reason.MPS_TAMPERED, places=_INCIDENT,
        meaning="Something changed a setting of the MPS daemon, such as the memory limit. The enforcer restored it.",
        action="Find the pod that has access to the daemon's control socket.",
    ),
    ReasonRow(
        reason=Reason.MPS_HUNG, places=_INCIDENT,
        meaning="The MPS daemon hung: it was stopped by a signal, its log pipe was full, or it did not answer. The "
        "enforcer resumed it, or ended it to start it again.",
        action="If it repeats, find the container that signals the daemon or fills its pipe.",
    ),
    ReasonRow(
        reason=Reason.MPS_LOG, places=_LOG,
        meaning="A line of the MPS daemon's or server's own log, or the log cannot be read.",
        action="Only warnings matter. NVIDIA's MPS documentation explains the lines.",
    ),
    ReasonRow(
        reason=Reason.MPS_CONTROL_BLOCKED, places=(Place.NODE_EVENT, Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="The MPS daemon did not answer in time because a silent connection holds its control socket. The "
        "enforcer closes such connections. In an audit record: MPS could not be asked to terminate the client.",
        action="The log line names the pid, and the pod if it is one. If it repeats, delete that pod.",
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
        meaning="The enforcer chose the limit backend of a GPU: what refuses memory beyond the limit.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_SET, places=_LOG,
        meaning="The enforcer set a container's memory limit in the driver.",
    ),
    ReasonRow(
        reason=Reason.IN_FORCE, places=_LIMIT,
        meaning="The container's limit is in force: the limit backend confirms it and nothing contradicts it.",
    ),
    ReasonRow(
        reason=Reason.PER_PROCESS_ONLY, places=_LIMIT,
        meaning="The limit holds for each process of the container by itself. Together they can use more, and are "
        "killed above the quota.",
        action="Use one process with a CUDA context in each container, or keep their sum below the quota.",
    ),
    ReasonRow(
        reason=Reason.NOT_APPLIED, places=_BAD_LIMIT,
        meaning="The container runs without its limit, or with an older one. Only kills above the quota protect "
        "others.",
        action="Restart the container, so that its processes start with the limit. Where the limit backend is "
        "watch-only, no limit exists and nothing is wrong.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_ESCAPED, places=_BAD_LIMIT,
        meaning="A process of the container bypasses its limit: it is no MPS client, changed its limit, or uses more "
        "memory than its limit allows.",
        action=f"Do not change {contract.MPS_MEMORY_LIMIT} or CUDA_VISIBLE_DEVICES in the program or its start script. "
        "Above its quota the container is killed.",
    ),
    ReasonRow(
        reason=Reason.UNKNOWN, places=_LIMIT,
        meaning="Whether the limit is in force cannot be verified now: the GPU or MPS cannot be read, or the container "
        "uses no GPU memory yet.",
    ),
)  # fmt: skip

_QUOTAS: Final = (
    ReasonRow(
        reason=Reason.OVER_QUOTA, places=(Place.POD_EVENT, Place.RESIZE, Place.LOG),
        meaning="The container uses more GPU memory than its kill threshold (its quota and a tolerance). As the answer "
        "to a resize: it uses more than the new quota.",
        action="Free memory within the grace period that the message names, or ask for more: gpu-share resize, or a "
        f"larger {contract.MEMORY}.",
    ),
    ReasonRow(
        reason=Reason.TOO_MANY_CLIENTS, places=(Place.POD_EVENT,),
        meaning="The container has more MPS clients than its share counts as, so other pods may find none left.",
        action="Use fewer processes with a CUDA context. Nothing is killed for it.",
    ),
    ReasonRow(
        reason=Reason.LIMIT_EXCEEDED, places=_KILL,
        meaning="The container is still over its quota after a kill: new processes appear faster than the enforcer "
        "kills them.",
        action="Stop what restarts the processes, or delete the pod.",
    ),
    ReasonRow(
        reason=Reason.BACK_UNDER_QUOTA, places=_KILL,
        meaning="The container freed memory in time and is within its quota again, so it was not killed.",
    ),
    ReasonRow(
        reason=Reason.QUOTA_REACHED, places=_FAILED,
        meaning="The container failed shortly after it had reached its own quota: very likely a GPU out-of-memory "
        "error.",
        action=f"Ask for more with {contract.MEMORY}, or let the program use less.",
    ),
    ReasonRow(
        reason=Reason.GPU_FULL, places=_FAILED,
        meaning="The container failed while its GPU was full although it was within its quota: very likely a GPU "
        "out-of-memory error caused by other memory on the GPU.",
        action="Restart the container. An operator finds with gpu-share top what else uses the GPU.",
    ),
)  # fmt: skip

_KILLS: Final = (
    ReasonRow(
        reason=Reason.CLIENT_TERMINATED, places=(Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="MPS terminated the client: its pod is being deleted, or the client would exit with a process to be "
        "killed.",
    ),
    ReasonRow(
        reason=Reason.TERMINATE_FAILED, places=_KILL,
        meaning="MPS did not terminate the client. The enforcer sent it no signal yet, because killing a connected "
        "client can stop the MPS server of other pods.",
        action="The enforcer tries again, and uses signals after three refusals. If it lasts, read the MPS log.",
    ),
    ReasonRow(
        reason=Reason.IDENTITY_CHANGED, places=_KILL,
        meaning="At the recheck, the processes were no longer the ones over quota: the pid has another process, or it "
        "uses no GPU memory any more. They were not signalled.",
    ),
    ReasonRow(
        reason=Reason.ALREADY_EXITED, places=_KILL,
        meaning="The process had exited by itself before the enforcer did anything to it.",
    ),
    ReasonRow(
        reason=Reason.KILLED, places=_KILL,
        meaning="The enforcer killed processes of a container that was over its quota. It is within its quota again, "
        "or gone.",
        action=f"Ask for more with {contract.MEMORY}, or let the program use less. gpu-share audit has the record.",
    ),
    ReasonRow(
        reason=Reason.UNKILLABLE, places=_KILL,
        meaning="A process could not be signalled, or did not exit after SIGKILL, as happens if it waits inside the "
        "driver. It keeps its memory.",
        action="Check the driver in the kernel's log. Usually only a reset of the GPU or a reboot helps.",
    ),
    ReasonRow(
        reason=Reason.BREAKER_OPEN, places=(Place.POD_EVENT, Place.METRIC, Place.LOG),
        meaning="The circuit breaker is open: too much of the node is over quota at once, which may be a mistake of "
        "the enforcer. It kills nothing until the breaker is closed.",
        action="An operator finds the cause and closes the breaker: gpu-share breaker --node NODE --reset. If the "
        "cause ends, the breaker closes by itself.",
    ),
    ReasonRow(
        reason=Reason.KILL_RATE_LIMITED, places=(Place.POD_EVENT,),
        meaning="The container is due to be killed, but its namespace had too many kills on this node in the last "
        "minute. The kill waits.",
        action="Free memory, or ask for more.",
    ),
    ReasonRow(
        reason=Reason.PROTECTED, places=_LOG,
        meaning="The process is in no container, as those of the node and of MPS, or it is the enforcer itself. It is "
        "never killed.",
    ),
    ReasonRow(
        reason=Reason.NOT_ENFORCING, places=_KILL,
        meaning="The kill was cancelled: by now the namespace wants warnings only, the claim is gone, or the circuit "
        "breaker is open.",
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
        "cut, replaced or started again.",
        action="Find out who changed the log. The message has the command that anchors the log again.",
    ),
    ReasonRow(
        reason=Reason.AUDIT_BROKEN, places=(Place.METRIC, Place.LOG),
        meaning="The enforcer verifies its own audit log once a day. A record was altered or removed, or the log could "
        "not be read.",
        action="Run gpu-share audit verify in the enforcer. Copy the log away and find out who changed it.",
    ),
    ReasonRow(
        reason=Reason.RECOVERED, places=(Place.NODE_EVENT, Place.AUDIT, Place.METRIC, Place.LOG),
        meaning="What was wrong before is over: a GPU, MPS, the disk or the circuit breaker. In the audit log: a torn "
        "last line was repaired after a crash.",
    ),
    ReasonRow(
        reason=Reason.INTERRUPTED, places=(Place.AUDIT, Place.LOG),
        meaning="The enforcer ended before it knew the outcome of a kill, or it could not read the grace periods that "
        "it had saved, so they start again.",
    ),
    ReasonRow(
        reason=Reason.CHECKPOINT_UNREADABLE, places=(Place.METRIC, Place.LOG),
        meaning="A file of quotas or of a prepared claim cannot be read. The last valid quotas stay in force.",
        action="Check the node's disk. The message names the file; if it is of a claim and the line repeats, delete "
        "that claim's pod.",
    ),
    ReasonRow(
        reason=Reason.ENFORCER_STARTED, places=_LOG,
        meaning="The enforcer started. The line has its settings or its capabilities.",
    ),
    ReasonRow(
        reason=Reason.ENFORCER_STOPPED, places=_LOG,
        meaning="The enforcer stopped in an orderly way.",
    ),
)  # fmt: skip

ROWS: Final = (*_GPUS, *_MPS, *_LIMITS, *_QUOTAS, *_KILLS, *_ENFORCER)
