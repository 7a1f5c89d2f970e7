{{- define "mesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "mesh.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ default (include "mesh.fullname" .) .Values.serviceAccount.name }}
{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end -}}

{{/* Selectors are immutable, so they do not contain a version. */}}
{{- define "mesh.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "mesh.labels" -}}
{{ include "mesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Reference of an image; a digest takes precedence over a tag. Arguments: root, image, name. */}}
{{- define "mesh.image" -}}
{{- $repository := default (printf "%s/%s" .root.Values.imageRegistry .name) .image.repository -}}
{{- if .image.digest -}}{{ printf "%s@%s" $repository .image.digest }}
{{- else -}}{{ printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) }}{{- end -}}
{{- end -}}

{{- define "mesh.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "mesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* trigger-submitter becomes the owner of a rule, by its file capabilities. */}}
{{- define "mesh.submitterSecurity" -}}
allowPrivilegeEscalation: true
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL], add: [SETUID, SETGID]}
{{- end -}}

{{- define "mesh.natsUrl" -}}
{{- if .Values.nats.embedded -}}nats://{{ include "mesh.fullname" . }}-nats:4222
{{- else -}}{{ .Values.nats.url }}{{- end -}}
{{- end -}}

{{/* Environment with settings from the chart; it takes precedence over mesh.toml. Arguments: root, role. */}}
{{- define "mesh.environment" -}}
- {name: MESH_CONFIG, value: /etc/slurm-mesh/mesh.toml}
- {name: MESH_MESH__CLUSTER, value: {{ .root.Values.cluster | quote }}}
- {name: MESH_MESH__NATS__URL, value: {{ include "mesh.natsUrl" .root | quote }}}
- {name: MESH_MESH__NATS__NKEY_FILE, value: /run/secrets/nats/{{ .role }}.seed}
- {name: MESH_MESH__NATS__PROVISION, value: "false"}
- {name: MESH_MESH__NATS__REPLICAS, value: {{ .root.Values.nats.streamReplicas | quote }}}
{{- if .root.Values.nats.caSecret }}
- {name: MESH_MESH__NATS__CA_FILE, value: /run/secrets/nats-ca/ca.crt}
{{- end }}
{{- if .root.Values.nats.clientSecret }}
- {name: MESH_MESH__NATS__CERT_FILE, value: /run/secrets/nats-client/tls.crt}
- {name: MESH_MESH__NATS__KEY_FILE, value: /run/secrets/nats-client/tls.key}
{{- end }}
{{- end -}}

{{- define "mesh.volumeMounts" -}}
- {name: config, mountPath: /etc/slurm-mesh, readOnly: true}
- {name: nats, mountPath: /run/secrets/nats, readOnly: true}
{{- if .root.Values.nats.caSecret }}
- {name: nats-ca, mountPath: /run/secrets/nats-ca, readOnly: true}
{{- end }}
{{- if .root.Values.nats.clientSecret }}
- {name: nats-client, mountPath: /run/secrets/nats-client, readOnly: true}
{{- end }}
{{- end -}}

{{- define "mesh.volumes" -}}
- {name: config, configMap: {name: {{ include "mesh.fullname" .root }}}}
- {name: nats, secret: {secretName: {{ .root.Values.nats.secretPrefix }}-{{ .role }}, defaultMode: 0440}}
{{- if .root.Values.nats.caSecret }}
- {name: nats-ca, secret: {secretName: {{ .root.Values.nats.caSecret }}, defaultMode: 0440}}
{{- end }}
{{- if .root.Values.nats.clientSecret }}
- {name: nats-client, secret: {secretName: {{ .root.Values.nats.clientSecret }}, defaultMode: 0440}}
{{- end }}
{{- end -}}
