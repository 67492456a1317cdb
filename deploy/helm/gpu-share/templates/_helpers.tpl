{{/* Labels of every object. Names are fixed: webhook, classes and driver exist once in a cluster. */}}
{{- define "gpu-share.labels" -}}
app.kubernetes.io/part-of: gpu-share
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* An image's reference: dict "root" $ "image" <values>. A digest wins over a tag, the global registry over its own. */}}
{{- define "gpu-share.reference" -}}
{{- $registry := .root.Values.global.imageRegistry | default .image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $name .image.digest }}
{{- else -}}
{{ printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{- define "gpu-share.image" -}}
{{ include "gpu-share.reference" (dict "root" . "image" .Values.image) }}
{{- end }}

{{/* A quantity as a number, such as 0.1 for 100m. */}}
{{- define "gpu-share.number" -}}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" (toString .) | float64) (get $units (regexFind "[A-Za-z]+$" (toString .)) | default 1.0) -}}
{{- end }}

{{/* More labels of our own pods, which go on from the chart's, and their annotations. */}}
{{- define "gpu-share.podMetadata" -}}
{{- with .Values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
{{- with .Values.podAnnotations }}{{ printf "annotations:%s" (toYaml . | nindent 2) | nindent 6 }}{{ end }}
{{- end }}

{{- define "gpu-share.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where pods that need no GPU run: dict with nodeSelector, tolerations, affinity. */}}
{{- define "gpu-share.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What Pod Security "restricted" asks for. fsGroup: without it the certificate's files are root's alone. */}}
{{- define "gpu-share.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpu-share.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where the simulator keeps its world on the host. */}}
{{- define "gpu-share.simulated" -}}
{{ .Values.stateDir }}/simulator
{{- end }}

{{/* Whether enforcer and MPS pod are privileged: "true", or nothing. */}}
{{- define "gpu-share.privileged" -}}
{{- if and .Values.enforcer.privileged (or (not .Values.simulate.enabled) .Values.simulate.privileged) }}true{{ end }}
{{- end }}

{{/* Where the enforcer's container sees the node's driver. */}}
{{- define "gpu-share.driverRoot" -}}
{{- if .Values.simulate.enabled }}{{ include "gpu-share.simulated" . }}/driver{{ else }}/driver-root{{ end }}
{{- end }}

{{/* Volume of what MPS's daemons have as /dev/shm. */}}
{{- define "gpu-share.sharedMemory" -}}
{{- if ne .Values.mps.sharedMemory "private" -}}
hostPath: {path: {{ printf "%s/shm" .Values.runDir | quote }}, type: DirectoryOrCreate}
{{- else -}}
hostPath: {path: /dev/shm, type: Directory}
{{- end -}}
{{- end }}

{{- /* Whether a container may ask for several GPUs: "allow" or "refuse". */}}
{{- define "gpu-share.severalGpus" -}}
{{- if ne .Values.webhook.severalGpus "auto" }}{{ .Values.webhook.severalGpus }}
{{- else if eq .Values.enforcer.mode "time-slicing" }}allow{{ else }}refuse{{ end }}
{{- end }}

{{- /* What `gpu-share check` reads of the release by name. */}}
{{- define "gpu-share.namedRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [kube-controller-manager, kube-scheduler]
  verbs: [get]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames:
    - gpu-share-certs
    - gpu-share-edit
    - gpu-share-enforcer
    - gpu-share-operator
    - gpu-share-resize
    - gpu-share-view
    - gpu-share-webhook
  verbs: [get]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterrolebindings]
  resourceNames: [gpu-share-certs, gpu-share-enforcer, gpu-share-webhook]
  verbs: [get]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  resourceNames: [gpu-share-certs]
  verbs: [get]
- apiGroups: [""]
  resources: [serviceaccounts]
  resourceNames: [gpu-share-certs, gpu-share-enforcer, gpu-share-webhook]
  verbs: [get]
- apiGroups: [""]
  resources: [services]
  resourceNames: [gpu-share-webhook]
  verbs: [get]
{{- end }}

{{- /* What `gpu-share check --cluster` reads, and nothing else. */}}
{{- define "gpu-share.checkRules" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch] # a list is streamed as a watch, in one call
- apiGroups: [""]
  resources: [nodes, pods, resourcequotas]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, devicetaintrules]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses]
  verbs: [get]
- apiGroups: [apps]
  resources: [daemonsets, deployments]
  verbs: [list, watch]
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations]
  verbs: [get, list, watch]
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingadmissionpolicies, validatingadmissionpolicybindings]
  verbs: [get]
{{- if .Values.certs.certManager.enabled }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  resourceNames: [gpu-share-webhook]
  verbs: [get]
{{- end }}
{{ include "gpu-share.namedRules" . }}
{{- end }}

{{- /* What operators read of a cluster: for `gpu-share check`, `explain` and `audit anchors`. */}}
{{- define "gpu-share.readRules" -}}
- apiGroups: [""]
  resources: [namespaces, nodes, pods, resourcequotas]
  verbs: [get, list, watch]
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses, devicetaintrules, resourceslices, resourceclaims, resourceclaimtemplates]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [daemonsets, deployments]
  verbs: [get, list, watch]
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingadmissionpolicies, validatingadmissionpolicybindings]
  verbs: [get, list, watch]
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [get, list, watch]
- apiGroups: [cert-manager.io] # with certs.certManager.enabled
  resources: [certificates]
  resourceNames: [gpu-share-webhook]
  verbs: [get]
{{ include "gpu-share.namedRules" . }}
{{- end }}
