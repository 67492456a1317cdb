"""What a container gets through CDI: variables, mounts, and the file that says so. Pure.

One file per claim, one device per request; the kubelet hands a container the devices of the requests it uses, and what
stands here replaces what the pod says. Two containers that use one request get the same, so what differs between them
is left to the variables each has of its own: Prepare has compared those with their limits. A request that reserved no
compute has one cap for all of its containers; where only some of them have a percentage, the others have no cap.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from enforcer.dra.contexts import Context, context_of
from enforcer.dra.prepared_claim import AllocatedDevice, PreparedClaim, Seen
from enforcer.quota.types import Mode
from gpushare import contract, framework_variables, mps_variables
from gpushare.memory_fraction import Budget, Reserve, budget

Object = dict[str, Any]
VERSION: Final = "0.6.0"


def file_name(uid: str) -> str:
    """Name the file of a claim."""
    return f"{contract.CDI_FILE_PREFIX}{uid}.json"


def claim_of_file(name: str) -> str | None:
    """Name the claim a file is for; ``None`` where it is none of ours."""
    if not (name.startswith(contract.CDI_FILE_PREFIX) and name.endswith(".json")):
        return None
    return name.removeprefix(contract.CDI_FILE_PREFIX).removesuffix(".json")


def device_id(claim: PreparedClaim, request: str) -> str:
    """Return the CDI name of a request's device, as in the answer to the kubelet."""
    return f"{contract.CDI_KIND}={_device_name(claim, request)}"


def document(
    claim: PreparedClaim,
    pipes: Mapping[str, str],
    status: str,
    shared_memory: str | None = None,
    reserve: Reserve | None = None,
) -> Object:
    """Write the file of a claim.

    Args:
        claim: as it was prepared.
        pipes: by request, the directory on the host that its containers get as MPS's; only those that use MPS need one.
        status: directory of the pod's status on the host.
        shared_memory: directory on the host that those who use MPS get as /dev/shm, unless they bring their own;
            ``None``: all keep what they have.
        reserve: what limits keep in reserve; ``None``: the default.
    """
    devices = [
        {
            "name": _device_name(claim, request),
            "containerEdits": _gpu_edits(
                claim,
                grants,
                pipes.get(request) if all(each.mode is Mode.MPS for each in grants) else None,
                shared_memory,
                reserve or Reserve(),
            )
            if (grants := claim.of(request))
            else {"mounts": [_mount(status, contract.STATUS_PATH, "ro")]},
        }
        for request in dict.fromkeys(each.request for each in claim.granted)
    ]
    return {"cdiVersion": VERSION, "kind": contract.CDI_KIND, "devices": devices}


def variables(
    claim: PreparedClaim, grants: Sequence[AllocatedDevice], *, mps: bool, reserve: Reserve | None = None
) -> dict[str, str]:
    """Return the variables of a request's containers, for all GPUs of the request.

    Usable memory and fractions are the smallest container's where several differ. Of GPUs of different sizes the
    largest counts: the fraction then is within the limit on each.
    """
    limits = claim.limits_of(grants[0].request)
    memory = {limit.memory_mib for limit in limits} or {min(each.memory_mib for each in grants)}
    most = {limit.most_mib for limit in limits} or memory
    percent = claim.thread_percentage(grants[0].request) if mps else None
    context = context_of(claim, grants[0].request)
    mine = _budget(claim, grants, min(memory), mps=mps, reserve=reserve or Reserve(), context=context)
    seen = ",".join(each.gpu or "" for each in grants)
    found = {
        contract.CUDA_VISIBLE_DEVICES: seen,
        contract.NVIDIA_VISIBLE_DEVICES: seen,
        contract.DEVICE_MEMORY_MIB: str(max(each.device_mib for each in grants)),
        contract.USABLE_MIB: str(mine.usable_mib),
        contract.MEMORY_FRACTION: mine.of_total,
        contract.FREE_FRACTION: mine.of_free,
    } | framework_variables.variables(claim.settings.get(grants[0].request, ()), mine)
    if capabilities := claim.driver_capabilities.get(grants[0].request):
        found[contract.NVIDIA_DRIVER_CAPABILITIES] = capabilities
    if len(grants) > 1:
        found[contract.GPUS_VARIABLE] = str(len(grants))
    if len(memory) == 1:
        found[contract.MEMORY_MIB] = str(min(memory))
    if mps:
        found |= mps_variables.DAEMON | mps_variables.limits(min(most) if len(most) == 1 else None, percent)
        if clients := claim.clients.get(grants[0].request):
            found[contract.MPS_CLIENTS] = str(clients)
    return found


def _budget(
    claim: PreparedClaim,
    grants: Sequence[AllocatedDevice],
    limit: int,
    *,
    mps: bool,
    reserve: Reserve,
    context: Context | None,
) -> Budget:
    """Work out what each of these GPUs has for a container with this limit; where GPUs differ, what fits on all."""
    known = {each.gpu: each for each in claim.seen}
    seen = [known.get(each.gpu or "") or Seen(gpu="", total_mib=each.device_mib) for each in grants]
    most = min((each.most_mib for each in claim.limits_of(grants[0].request)), default=limit)
    totals = [most if each.by_cgroup else each.total_mib for each in seen]
    watched = [not each.by_cgroup and grant.mode is Mode.TIME_SLICING for each, grant in zip(seen, grants, strict=True)]
    context_mib = None if context is None else context.mib
    return budget(limit, max(totals), reserve, context_mib=context_mib, watch_only=not mps and any(watched))


def toolkit_device(gpu: str) -> str:
    """Name NVIDIA's own CDI device of a GPU, which brings the libraries and device nodes."""
    return f"{contract.TOOLKIT_CDI_KIND}={gpu}"


def names_devices(spec: object) -> frozenset[str]:
    """Name the devices that a CDI spec of NVIDIA's container toolkit has; none where it is no such spec."""
    if not isinstance(spec, dict) or spec.get("kind") != contract.TOOLKIT_CDI_KIND:
        return frozenset()
    devices = spec.get("devices")
    entries = devices if isinstance(devices, list) else []
    return frozenset(str(each["name"]) for each in entries if isinstance(each, dict) and "name" in each)


def _gpu_edits(
    claim: PreparedClaim,
    grants: Sequence[AllocatedDevice],
    pipe: str | None,
    shared_memory: str | None,
    reserve: Reserve,
) -> Object:
    found = variables(claim, grants, mps=pipe is not None, reserve=reserve)
    edits: Object = {"env": [f"{name}={value}" for name, value in found.items()]}
    if pipe is not None:
        # Read-only: sockets and pipes work all the same, and no tenant puts links or files where root opens them.
        # Not the log directory: a daemon's log names the processes of everybody on its GPU.
        edits["mounts"] = [_mount(pipe, contract.PIPE_PATH, "ro")]
        if shared_memory is not None and grants[0].request not in claim.own_shared_memory:
            # A runtime puts a mount of CDI in the place of the pod's own at the same path, so there is none there.
            edits["mounts"].append(_mount(shared_memory, contract.SHARED_MEMORY_PATH, "rw"))
    return edits


def _mount(host: str, inside: str, access: str) -> Object:
    return {"hostPath": host, "containerPath": inside, "options": ["bind", access, "nosuid", "nodev", "noexec"]}


def _device_name(claim: PreparedClaim, request: str) -> str:
    return f"{claim.uid}-{request}"
