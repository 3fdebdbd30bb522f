{{/*
The client's container and what it needs in a pod, as YAML with these keys:

  container:    for `containers`
  volumes:      for `volumes`
  annotations:  for the pod's annotations: replaces the pod when a setting changes that the client does not take over

Takes the scope of this chart. A chart of a service that has the client beside it in its own pod depends on this one:

  # Chart.yaml
  dependencies:
    - name: tunnel-client
      version: 0.1.0
      repository: file://../tunnel-client        # or where you publish it

  # values.yaml
  tunnel-client:
    mode: sidecar                                # only the ConfigMap; the pod is that of the service
    upstream: http://127.0.0.1:3000              # by loopback, where no other pod can read the traffic

  # templates/deployment.yaml
  {{- $tunnel := include "tunnel-client.sidecar" (index .Subcharts "tunnel-client") | fromYaml }}
  apiVersion: apps/v1
  kind: Deployment
  metadata:
    name: app
  spec:
    replicas: 1                                  # a runtime has one client
    strategy:
      type: RollingUpdate
      rollingUpdate: { maxSurge: 1, maxUnavailable: 0 }
    selector:
      matchLabels: { app: app }
    template:
      metadata:
        labels: { app: app }
        annotations:
          {{- toYaml $tunnel.annotations | nindent 10 }}
      spec:
        terminationGracePeriodSeconds: 30        # more than gracePeriod, 25 s by default
        automountServiceAccountToken: false
        enableServiceLinks: false
        securityContext:
          fsGroup: 65532                         # the group that may read the token
          seccompProfile: { type: RuntimeDefault }
        initContainers:
          - name: app                            # starts before the client and stops after it
            image: app:1
            restartPolicy: Always
            startupProbe:
              httpGet: { path: /, port: 3000 }
              periodSeconds: 1
              failureThreshold: 60
        containers:
          - {{ toYaml $tunnel.container | nindent 12 | trim }}
        volumes:
          {{- toYaml $tunnel.volumes | nindent 10 }}

deploy/helm/tests/sidecar is this chart, and is checked with the others.
*/}}
{{- define "tunnel-client.sidecar" -}}
container:
  {{- include "tunnel-client.container" . | nindent 2 }}
volumes:
  {{- include "tunnel-client.volumes" . | nindent 2 }}
annotations:
  checksum/tunnel-client-settings: {{ include "tunnel-client.restartChecksum" . }}
{{- end }}

{{- define "tunnel-client.container" -}}
{{- $isServe := include "tunnel-client.isServe" . -}}
name: tunnel-client
image: {{ include "tunnel-client.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [{{ ternary "serve" "run" (eq .Values.mode "serve") | quote }}]
env:
  {{- include "tunnel-client.env" . | nindent 2 }}
ports:
  {{- if $isServe }}
  - name: http
    containerPort: {{ .Values.serve.port }}
  {{- end }}
  - name: tunnel-admin
    containerPort: {{ .Values.admin.port }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- if .Values.readinessProbe.enabled }}
readinessProbe:
  httpGet:
    path: /readyz
    port: tunnel-admin
  {{- omit .Values.readinessProbe "enabled" | toYaml | nindent 2 }}
{{- end }}
{{- if .Values.livenessProbe.enabled }}
livenessProbe:
  httpGet:
    path: /healthz
    port: tunnel-admin
  {{- omit .Values.livenessProbe "enabled" | toYaml | nindent 2 }}
{{- end }}
resources:
  {{- ternary .Values.serve.resources .Values.resources (eq .Values.mode "serve") | toYaml | nindent 2 }}
# Folders, since files mounted by subPath never change.
volumeMounts:
  {{- include "tunnel-client.mounts" . | trim | nindent 2 }}
{{- end }}

{{- define "tunnel-client.env" -}}
# A variable, so that commands in the container find the file, too: `tunnel-client check`.
- name: TUNNEL_CLIENT_CONFIG
  value: /etc/tunnel/config/client.toml
{{- if not (or (include "tunnel-client.isServe" .) .Values.server) }}
- name: TUNNEL_CLIENT_SERVER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.token.secretName }}
      key: {{ .Values.token.serverKey }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tunnel-client.mounts" -}}
{{- range include "tunnel-client.ownVolumes" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: /etc/tunnel/{{ .name | trimPrefix "tunnel-" }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tunnel-client.volumes" -}}
{{ include "tunnel-client.ownVolumes" . }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The volume tunnel-NAME is the folder /etc/tunnel/NAME. The names do not collide with those of a service in the same pod. */}}
{{- define "tunnel-client.ownVolumes" -}}
- name: tunnel-config
  configMap:
    name: {{ include "tunnel-client.fullname" . }}
{{- if include "tunnel-client.isServe" . }}
{{- include "tunnel-client.volume" (dict "name" "listen-tls" "secretName" .Values.serve.tlsSecretName) }}
{{- else }}
{{- include "tunnel-client.volume" (dict "name" "token" "secretName" .Values.token.secretName) }}
{{- include "tunnel-client.volume" (dict "name" "client-tls" "secretName" .Values.clientCertificate.secretName) }}
{{- include "tunnel-client.volume" (merge (dict "name" "ca") .Values.ca) }}
{{- include "tunnel-client.volume" (dict "name" "proxy-auth" "secretName" .Values.proxy.authSecretName) }}
{{- include "tunnel-client.volume" (merge (dict "name" "proxy-ca") .Values.proxy.ca) }}
{{- end }}
{{- range .Values.folders }}
{{- include "tunnel-client.volume" . }}
{{- end }}
{{- end }}

{{/* A Secret or a ConfigMap as a volume; nothing without a name of either. A Secret is readable by the group of `fsGroup`. */}}
{{- define "tunnel-client.volume" -}}
{{- if .secretName }}
- name: tunnel-{{ .name }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
{{- else if .configMapName }}
- name: tunnel-{{ .name }}
  configMap:
    name: {{ .configMapName }}
{{- end }}
{{- end }}
