"""One vocabulary of reasons: the same word in a refusal, a log line, a metric label, an Event and a kill record."""

from enum import StrEnum


class Reason(StrEnum):
    """Why something was done, refused or noticed. Values are UpperCamelCase, as Events want them."""

    # Admission: what was done.
    APPLIED = "Applied"
    UNCHANGED = "Unchanged"
    NO_SHARE = "NoShare"
    MIRROR_POD = "MirrorPod"
    OWN_CLAIM = "OwnClaim"
    NOT_A_POD = "NotAPod"
    # Admission: refusals.
    INVALID_QUANTITY = "InvalidQuantity"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    INVALID_VALUE = "InvalidValue"
    MEMORY_MISSING = "MemoryMissing"
    UNKNOWN_ANNOTATION = "UnknownAnnotation"
    UNKNOWN_CONTAINER = "UnknownContainer"
    CONFLICT = "Conflict"
    RESERVED_NAME = "ReservedName"
    TOO_MANY_CONTAINERS = "TooManyContainers"
    INVALID_POD = "InvalidPod"
    INVALID_NAMESPACE = "InvalidNamespacePolicy"
    # Admission: calls that cannot be answered.
    BAD_REQUEST = "BadRequest"
    TOO_LARGE = "TooLarge"
    NAMESPACE_UNKNOWN = "NamespaceUnknown"
    INTERNAL = "InternalError"
    # Templates.
    TEMPLATE_CREATED = "TemplateCreated"
    TEMPLATE_DELETED = "TemplateDeleted"
    TEMPLATE_MISMATCH = "TemplateMismatch"
    # Certificates.
    CERTIFICATE_RENEWED = "CertificateRenewed"
    CERTIFICATE_REJECTED = "CertificateRejected"
    CERTIFICATE_CURRENT = "CertificateCurrent"
    BUNDLE_PUBLISHED = "BundlePublished"
    AUTHORITY_ADDED = "AuthorityAdded"
    AUTHORITY_SWITCHED = "AuthoritySwitched"
    AUTHORITY_DROPPED = "AuthorityDropped"
    # GPU, NVML, MPS.
    NVML_UNAVAILABLE = "NvmlUnavailable"
    IMPLAUSIBLE_SAMPLE = "ImplausibleSample"
    NOT_INITIAL_PID_NAMESPACE = "NotInitialPidNamespace"
    MPS_UNREACHABLE = "MpsUnreachable"
    MPS_STARTED = "MpsStarted"
    MPS_STOPPED = "MpsStopped"
    MPS_LIMIT_NOT_APPLIED = "MpsLimitNotApplied"
    CONTROL_BLOCKED = "ControlBlocked"
    # Judgement and kills.
    WITHIN_QUOTA = "WithinQuota"
    OVER_QUOTA = "OverQuota"
    LIMIT_EXCEEDED = "LimitExceeded"
    BACK_UNDER_QUOTA = "BackUnderQuota"
    CLIENT_TERMINATED = "ClientTerminated"
    TERMINATE_FAILED = "TerminateFailed"
    IDENTITY_CHANGED = "IdentityChanged"
    GONE = "Gone"
    KILLED = "Killed"
    UNKILLABLE = "Unkillable"
    BREAKER_OPEN = "BreakerOpen"
    UNKNOWN_CONTAINER_USE = "UnattributedGpuUse"
    RECORD_UNWRITABLE = "RecordUnwritable"
    RECOVERED = "Recovered"
