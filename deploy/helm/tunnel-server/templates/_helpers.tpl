{{/* Names and labels. */}}

{{- define "tunnel-server.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of all objects. At most 40 characters, so that every suffix fits into the 63 of a label or of a Service. */}}
{{- define "tunnel-server.fullname" -}}
{{- $name := include "tunnel-server.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tunnel-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tunnel-server.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of pods: none that changes with the chart alone, which would restart them. */}}
{{- define "tunnel-server.podLabels" -}}
{{ include "tunnel-server.selectorLabels" . }}
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

{{- define "tunnel-server.labels" -}}
{{ include "tunnel-server.selectorLabels" . }}
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

{{- define "tunnel-server.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" if several nodes share etcd, else nothing. */}}
{{- define "tunnel-server.isCluster" -}}
{{- if .Values.etcd.endpoints }}true{{ end }}
{{- end }}

{{/* Number of nodes that can run at once: each needs a certificate for its peers. */}}
{{- define "tunnel-server.nodes" -}}
{{- $nodes := int .Values.replicaCount }}
{{- if .Values.autoscaling.enabled }}
{{- $nodes = max $nodes (int .Values.autoscaling.maxReplicas) }}
{{- end }}
{{- $nodes }}
{{- end }}

{{/* The host names below the domain, as a JSON array. Takes: root, given (a list, which counts if it is not empty), use. */}}
{{- define "tunnel-server.publicHosts" -}}
{{- if .given }}
{{- toRawJson .given }}
{{- else if .root.Values.domain }}
{{- list (printf "*.%s" .root.Values.domain) | toRawJson }}
{{- else }}
{{- fail (printf "%s needs names: set `domain`" .use) }}
{{- end }}
{{- end }}

{{/* The host names of the tunnel listener, in the same way. */}}
{{- define "tunnel-server.tunnelHosts" -}}
{{- if .given }}
{{- toRawJson .given }}
{{- else if .root.Values.tunnel.host }}
{{- list .root.Values.tunnel.host | toRawJson }}
{{- else }}
{{- fail (printf "%s needs a name: set `tunnel.host`" .use) }}
{{- end }}
{{- end }}

{{/* Fails if the cluster does not have a kind. Takes: root, kind (with group and version), value, from. */}}
{{- define "tunnel-server.needKind" -}}
{{- if not (.root.Capabilities.APIVersions.Has .kind) }}
{{- fail (printf "%s is set, and the cluster has no kind %s: install %s first (with `helm template`, add --api-versions %s)" .value .kind .from .kind) }}
{{- end }}
{{- end }}

{{/* The newest version of TLSRoute that the cluster has. Takes: root, value. */}}
{{- define "tunnel-server.tlsRouteVersion" -}}
{{- $has := .root.Capabilities.APIVersions }}
{{- if $has.Has "gateway.networking.k8s.io/v1/TLSRoute" }}gateway.networking.k8s.io/v1
{{- else if $has.Has "gateway.networking.k8s.io/v1alpha3/TLSRoute" }}gateway.networking.k8s.io/v1alpha3
{{- else if $has.Has "gateway.networking.k8s.io/v1alpha2/TLSRoute" }}gateway.networking.k8s.io/v1alpha2
{{- else }}
{{- include "tunnel-server.needKind" (dict "root" .root "value" .value "kind" "gateway.networking.k8s.io/v1/TLSRoute" "from" "the Gateway API") }}
{{- end }}
{{- end }}

{{/* A time such as 25s, 5m or 500ms in whole seconds, rounded up. */}}
{{- define "tunnel-server.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int }}
{{- if hasSuffix "ms" . }}{{ div (add $number 999) 1000 }}
{{- else if hasSuffix "s" . }}{{ $number }}
{{- else if hasSuffix "m" . }}{{ mul $number 60 }}
{{- else }}{{ mul $number 3600 }}
{{- end }}
{{- end }}

{{/* Port of the Service of the public listener. */}}
{{- define "tunnel-server.publicServicePort" -}}
{{- $public := .Values.public }}
{{- if $public.service.port }}{{ int $public.service.port }}{{ else if $public.tls.enabled }}443{{ else }}80{{ end }}
{{- end }}

{{/* Values that do not fit together. The program checks the settings themselves. */}}
{{- define "tunnel-server.check" -}}
{{- $nodes := include "tunnel-server.nodes" . | int }}
{{- if not (include "tunnel-server.isCluster" .) }}
{{- if .Values.autoscaling.enabled }}
{{- fail "autoscaling.enabled needs several servers, which share etcd: set etcd.endpoints" }}
{{- end }}
{{- if gt $nodes 1 }}
{{- fail (printf "replicaCount is %d, and servers without etcd know nothing of each other: set etcd.endpoints, or replicaCount: 1" $nodes) }}
{{- end }}
{{- end }}
{{- $config := .Values.config }}
{{- if not (or .Values.runtimes.secretName $config.managed_runtimes $config.jwks $config.auth_url $config.client_ca) }}
{{- fail "no tunnel client could connect: set runtimes.secretName, or managed_runtimes, jwks, auth_url or client_ca in config" }}
{{- end }}
{{- range $name := list "tunnel" "public" }}
{{- $tls := (get $.Values $name).tls }}
{{- if and $tls.enabled (not $tls.secretName) (or $tls.certManager.enabled (not $config.acme_directory)) }}
{{- fail (printf "%s.tls.secretName: name the Secret of the certificate, or set acme_directory in config" $name) }}
{{- end }}
{{- end }}
{{- if and .Values.persistence.enabled (include "tunnel-server.isCluster" .) }}
{{- fail "persistence.enabled is for one server: nodes keep their state in etcd, with config.managed_runtimes: etcd" }}
{{- end }}
{{- $drain := .Values.drain }}
{{- $grace := include "tunnel-server.seconds" $drain.gracePeriod | int }}
{{- $delay := include "tunnel-server.seconds" $drain.delay | int }}
{{- $spread := include "tunnel-server.seconds" $drain.spread | int }}
{{- $wait := include "tunnel-server.seconds" $drain.offlineWait | int }}
{{- if ge $delay $grace }}
{{- fail (printf "drain.delay (%s) is a part of drain.gracePeriod (%s): make it shorter" $drain.delay $drain.gracePeriod) }}
{{- end }}
{{- if le $wait (add $delay $spread 2 | int) }}
{{- fail (printf "drain.offlineWait (%s) has to be more than drain.delay (%s), drain.spread (%s) and 2s together: requests wait for clients that move" $drain.offlineWait $drain.delay $drain.spread) }}
{{- end }}
{{- if and .Values.public.tlsRoute.enabled (not .Values.public.tls.enabled) }}
{{- fail "public.tlsRoute passes TLS through to a listener that has none: set public.tls.enabled: true, or use public.httpRoute" }}
{{- end }}
{{- range .Values.folders }}
{{- if and .secretName .configMapName }}
{{- fail (printf "folders: %s has both secretName and configMapName" .name) }}
{{- else if not (or .secretName .configMapName) }}
{{- fail (printf "folders: %s has neither secretName nor configMapName" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.etcd.ca.secretName .Values.etcd.ca.configMapName }}
{{- fail "etcd.ca has both secretName and configMapName" }}
{{- end }}
{{- end }}
