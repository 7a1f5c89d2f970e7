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

{{/* Environment with settings from the chart; it takes precedence over mesh.toml. Arguments: root, role (empty: without NATS). */}}
{{- define "mesh.environment" -}}
- {name: MESH_CONFIG, value: /etc/slurm-mesh/mesh.toml}
- {name: MESH_MESH__CLUSTER, value: {{ .root.Values.cluster | quote }}}
{{- if .role }}
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
{{- end }}
{{- end -}}

{{/* Environment of a pod that asks slurmrestd. Argument: root. */}}
{{- define "mesh.slurmEnvironment" -}}
- {name: MESH_SLURM__SOURCE, value: rest}
- {name: MESH_SLURM__REST_URL, value: {{ .Values.slurm.restUrl | quote }}}
- {name: MESH_SLURM__REST_USER, value: {{ .Values.slurm.restUser | quote }}}
- {name: MESH_SLURM__TOKEN_FILE, value: /run/secrets/slurm/{{ .Values.slurm.tokenSecret.key }}}
{{- end -}}

{{/* Not empty if a service of the release asks slurmrestd. */}}
{{- define "mesh.asksSlurm" -}}
{{- if or (get .Values.services "ingest").enabled (get .Values.services "node-watcher").enabled }}yes{{ end -}}
{{- end -}}

{{/* Not empty if the Secret of the role admin is there. */}}
{{- define "mesh.hasAdmin" -}}
{{- if or .Values.provision.enabled .Values.backup.enabled }}yes{{ end -}}
{{- end -}}

{{- define "mesh.volumeMounts" -}}
- {name: config, mountPath: /etc/slurm-mesh, readOnly: true}
{{- if .role }}
- {name: nats, mountPath: /run/secrets/nats, readOnly: true}
{{- if .root.Values.nats.caSecret }}
- {name: nats-ca, mountPath: /run/secrets/nats-ca, readOnly: true}
{{- end }}
{{- if .root.Values.nats.clientSecret }}
- {name: nats-client, mountPath: /run/secrets/nats-client, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "mesh.volumes" -}}
- {name: config, configMap: {name: {{ include "mesh.fullname" .root }}}}
{{- if .role }}
- {name: nats, secret: {secretName: {{ .root.Values.nats.secretPrefix }}-{{ .role }}, defaultMode: 0440}}
{{- if .root.Values.nats.caSecret }}
- {name: nats-ca, secret: {secretName: {{ .root.Values.nats.caSecret }}, defaultMode: 0440}}
{{- end }}
{{- if .root.Values.nats.clientSecret }}
- {name: nats-client, secret: {secretName: {{ .root.Values.nats.clientSecret }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- end -}}

{{/* A service's values: its own over serviceDefaults, as YAML. Arguments: root, name. */}}
{{- define "mesh.service" -}}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.serviceDefaults) (get .root.Values.services .name)) -}}
{{- end -}}

{{/* Services with a database of this kind in the backup, as YAML. Arguments: root, kind. */}}
{{- define "mesh.backedUp" -}}
{{- $backup := .root.Values.backup -}}
{{- $names := list -}}
{{- if and $backup.enabled $backup.databases -}}
{{- range $name := list "ledger" "cost-engine" "webhook-dispatcher" -}}
{{- $service := get $.root.Values.services $name -}}
{{- if and $service.enabled (eq (include "mesh.database" $service) $.kind) }}{{ $names = append $names $name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Names of the Secrets that pods and monitors use, each with a comma. */}}
{{- define "mesh.secrets" -}}
{{- $values := .Values -}}
{{- $names := list $values.api.tokenSecret.name $values.api.tlsSecret $values.nats.caSecret $values.nats.clientSecret -}}
{{- if $values.nats.embedded }}{{ $names = append $names $values.nats.serverSecret }}{{ end -}}
{{- if include "mesh.hasAdmin" . }}{{ $names = append $names (printf "%s-admin" $values.nats.secretPrefix) }}{{ end -}}
{{- if $values.migrate.enabled }}{{ $names = append $names $values.migrate.ownerSecret.name }}{{ end -}}
{{- if $values.backup.enabled }}{{ $names = append $names $values.backup.upload.existingSecret }}{{ end -}}
{{- if $values.ingress.enabled }}{{ $names = append $names $values.ingress.tlsSecret }}{{ end -}}
{{- if $values.metrics.podMonitor }}{{ $names = append $names $values.metrics.tokenSecret.name }}{{ end -}}
{{- range $name, $service := $values.services }}
{{- if $service.enabled }}
{{- $names = append $names (printf "%s-%s" $values.nats.secretPrefix $name) }}
{{- $names = concat $names (list $service.checkpointKeySecret $service.secretsKeySecret) }}
{{- if eq (include "mesh.database" $service) "postgres" }}{{ $names = append $names $service.database.existingSecret }}{{ end }}
{{- if has $name (list "ingest" "node-watcher") }}{{ $names = append $names $values.slurm.tokenSecret.name }}{{ end }}
{{- end }}
{{- end -}}
{{- $certificates := include "mesh.certificates" . | splitList "," -}}
{{- range $names | compact | uniq | sortAlpha }}{{ if not (has . $certificates) }}{{ . }},{{ end }}{{ end -}}
{{- end -}}

{{/* Names of the Secrets that cert-manager makes, each with a comma. */}}
{{- define "mesh.certificates" -}}
{{- if .Values.certManager.enabled -}}
{{- range list .Values.api.tlsSecret (ternary .Values.ingress.tlsSecret "" .Values.ingress.enabled) .Values.nats.clientSecret | compact | uniq }}{{ . }},{{ end -}}
{{- end -}}
{{- end -}}

{{/* sqlite, postgres, or nothing. Argument: a service. */}}
{{- define "mesh.database" -}}
{{- if .database }}{{ .database.kind }}{{ end -}}
{{- end -}}
