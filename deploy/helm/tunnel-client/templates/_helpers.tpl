{{/* Names and labels. */}}

{{- define "tunnel-client.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of all objects. At most 40 characters, so that every suffix fits into the 63 of a label or of a Service. */}}
{{- define "tunnel-client.fullname" -}}
{{- $name := include "tunnel-client.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tunnel-client.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tunnel-client.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of pods: none that changes with the chart alone, which would restart them. */}}
{{- define "tunnel-client.podLabels" -}}
{{ include "tunnel-client.selectorLabels" . }}
{{- with .Chart.AppVersion }}
app.kubernetes.io/version: {{ . | quote }}
{{- end }}
app.kubernetes.io/part-of: tunnel
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tunnel-client.labels" -}}
{{ include "tunnel-client.selectorLabels" . }}
{{- with .Chart.AppVersion }}
app.kubernetes.io/version: {{ . | quote }}
{{- end }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tunnel
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tunnel-client.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" with the mode serve, else nothing. */}}
{{- define "tunnel-client.isServe" -}}
{{- if eq .Values.mode "serve" }}true{{ end }}
{{- end }}

{{/* Fails if the cluster does not have a kind. Takes: root, kind (with group and version), value, from. */}}
{{- define "tunnel-client.needKind" -}}
{{- if not (.root.Capabilities.APIVersions.Has .kind) }}
{{- fail (printf "%s is set, and the cluster has no kind %s: install %s first (with `helm template`, add --api-versions %s)" .value .kind .from .kind) }}
{{- end }}
{{- end }}

{{/* A time such as 25s, 5m or 500ms in whole seconds, rounded up. */}}
{{- define "tunnel-client.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int }}
{{- if hasSuffix "ms" . }}{{ div (add $number 999) 1000 }}
{{- else if hasSuffix "s" . }}{{ $number }}
{{- else if hasSuffix "m" . }}{{ mul $number 60 }}
{{- else }}{{ mul $number 3600 }}
{{- end }}
{{- end }}

{{/* Port of the Service of serve. */}}
{{- define "tunnel-client.servicePort" -}}
{{- $serve := .Values.serve }}
{{- if $serve.service.port }}{{ int $serve.service.port }}{{ else if $serve.tlsSecretName }}443{{ else }}80{{ end }}
{{- end }}

{{/* Values that do not fit together. The program checks the settings themselves. */}}
{{- define "tunnel-client.check" -}}
{{- if not (include "tunnel-client.isServe" .) }}
{{- if not (or .Values.token.secretName .Values.clientCertificate.secretName) }}
{{- fail "the client has no credential: set token.secretName or clientCertificate.secretName" }}
{{- end }}
{{- if not (or .Values.server .Values.token.secretName) }}
{{- fail "without token.secretName no Secret has the server's URL: set server" }}
{{- end }}
{{- end }}
{{- range $name, $source := dict "ca" .Values.ca "proxy.ca" .Values.proxy.ca }}
{{- if and $source.secretName $source.configMapName }}
{{- fail (printf "%s has both secretName and configMapName" $name) }}
{{- end }}
{{- end }}
{{- range .Values.folders }}
{{- if and .secretName .configMapName }}
{{- fail (printf "folders: %s has both secretName and configMapName" .name) }}
{{- else if not (or .secretName .configMapName) }}
{{- fail (printf "folders: %s has neither secretName nor configMapName" .name) }}
{{- end }}
{{- end }}
{{- if and (include "tunnel-client.isServe" .) .Values.serve.ingress.enabled (not .Values.serve.ingress.hosts) }}
{{- fail "serve.ingress.enabled needs names: set serve.ingress.hosts" }}
{{- end }}
{{- end }}
