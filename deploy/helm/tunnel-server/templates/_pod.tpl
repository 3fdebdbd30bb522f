{{/* The pod, which is the same in the Deployment of one server and in the StatefulSet of several. */}}

{{- define "tunnel-server.podTemplate" -}}
{{- $isCluster := include "tunnel-server.isCluster" . }}
metadata:
  labels:
    {{- include "tunnel-server.podLabels" . | nindent 4 }}
  annotations:
    # Changes with settings that need a restart. Others take effect in the running server.
    checksum/restart-settings: {{ include "tunnel-server.restartChecksum" . }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # More than the grace period, in which the server leaves by itself: no preStop hook is needed.
  terminationGracePeriodSeconds: {{ add (include "tunnel-server.seconds" .Values.drain.gracePeriod | int) 5 }}
  # The server asks nothing of the cluster.
  automountServiceAccountToken: false
  # Variables for Services, such as TUNNEL_SERVER_ADMIN_PORT, would have names like those of settings.
  enableServiceLinks: false
  {{- with .Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  containers:
    - name: tunnel-server
      image: {{ include "tunnel-server.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["run"]
      env:
        # A variable, so that commands in the container find the file, too.
        - name: TUNNEL_SERVER_CONFIG
          value: /etc/tunnel/config/server.toml
        {{- if $isCluster }}
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        # The certificate for the other nodes names the node, so each pod has the file with its own name.
        - name: TUNNEL_SERVER_NODE
          value: $(POD_NAME)
        - name: TUNNEL_SERVER_PEER_ADVERTISE
          value: {{ .Values.peers.advertise | default (printf "$(POD_IP):%d" (int .Values.peers.port)) | quote }}
        - name: TUNNEL_SERVER_PEER_CERT
          value: /etc/tunnel/peers/peer-$(POD_NAME).pem
        - name: TUNNEL_SERVER_PEER_KEY
          value: /etc/tunnel/peers/peer-$(POD_NAME).key
        {{- with .Values.etcd.user }}
        {{- if .secretName }}
        - name: TUNNEL_SERVER_ETCD_USER
          valueFrom:
            secretKeyRef:
              name: {{ .secretName }}
              key: {{ .usernameKey }}
        {{- end }}
        {{- end }}
        {{- if .Values.etcd.zoneFromPodLabel }}
        - name: TUNNEL_SERVER_ZONE
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['topology.kubernetes.io/zone']
        {{- end }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- if not .Values.tunnel.onPublicListener }}
        - name: tunnel
          containerPort: {{ .Values.tunnel.port }}
        {{- end }}
        - name: public
          containerPort: {{ .Values.public.port }}
        - name: admin
          containerPort: {{ .Values.admin.port }}
        {{- if $isCluster }}
        - name: peers
          containerPort: {{ .Values.peers.port }}
        {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: admin
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      livenessProbe:
        httpGet:
          path: /healthz
          port: admin
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      # Folders, since files mounted by subPath never change.
      volumeMounts:
        {{- range include "tunnel-server.volumes" . | fromYamlArray }}
        - name: {{ .name }}
          mountPath: /etc/tunnel/{{ .name }}
          readOnly: true
        {{- end }}
        {{- if .Values.persistence.enabled }}
        - name: state
          mountPath: /var/lib/tunnel-server
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "tunnel-server.volumes" . | nindent 4 }}
    {{- if .Values.persistence.enabled }}
    - name: state
      persistentVolumeClaim:
        claimName: {{ .Values.persistence.existingClaim | default (printf "%s-state" (include "tunnel-server.fullname" .)) }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $isCluster .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range .Values.topologySpreadConstraints }}
    {{- $selector := dict "labelSelector" (dict "matchLabels" (include "tunnel-server.selectorLabels" $ | fromYaml)) }}
    {{- merge (deepCopy .) $selector | list | toYaml | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}

{{/* The volumes. Each one is the folder /etc/tunnel/NAME, and readable by the group of `fsGroup`. */}}
{{- define "tunnel-server.volumes" -}}
- name: config
  configMap:
    name: {{ include "tunnel-server.fullname" . }}
{{- range $name := list "tunnel" "public" }}
{{- $tls := (get $.Values $name).tls }}
{{- if and $tls.enabled $tls.secretName }}
- name: {{ $name }}-tls
  secret:
    secretName: {{ $tls.secretName }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with .Values.runtimes.secretName }}
- name: runtimes
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.revocations.secretName }}
- name: revocations
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.admin.tokenSecretName }}
- name: admin
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- range .Values.folders }}
- name: {{ .name }}
  {{- if .secretName }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ .configMapName }}
  {{- end }}
{{- end }}
{{- if include "tunnel-server.isCluster" . }}
{{- with .Values.etcd.ca.secretName }}
- name: etcd-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.etcd.ca.configMapName }}
- name: etcd-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- with .Values.etcd.clientCertificateSecretName }}
- name: etcd-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.etcd.user.secretName }}
- name: etcd-user
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
- name: peers
  {{- if .Values.peers.certManager.enabled }}
  # The Secrets of all nodes in one folder, since a StatefulSet has one template for all pods. Not by subPathExpr, with which
  # a renewed certificate would not reach the pod.
  projected:
    defaultMode: 0440
    sources:
      {{- $fullname := include "tunnel-server.fullname" . }}
      {{- range $node := until (include "tunnel-server.nodes" . | int) }}
      - secret:
          name: {{ $fullname }}-peer-{{ $node }}
          items:
            - key: tls.crt
              path: peer-{{ $fullname }}-{{ $node }}.pem
            - key: tls.key
              path: peer-{{ $fullname }}-{{ $node }}.key
            {{- if eq $node 0 }}
            - key: ca.crt
              path: peer-ca.pem
            {{- end }}
      {{- end }}
  {{- else }}
  secret:
    secretName: {{ .Values.peers.secretName }}
    defaultMode: 0440
  {{- end }}
{{- end }}
{{- end }}
