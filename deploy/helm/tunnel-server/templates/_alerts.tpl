{{/* The alerts of docs/reference/metrics.md, for the series that the ServiceMonitor of this release collects. */}}
{{- define "tunnel-server.alerts" -}}
{{- $at := printf "namespace=%q,job=%q" .Release.Namespace (printf "%s-admin" (include "tunnel-server.fullname" .)) }}
{{- if .Values.config.runtime_metrics }}
- alert: TunnelRuntimeOffline
  expr: max by (runtime) (tunnel_server_runtime_online{ {{- $at -}} }) == 0
  for: 5m
  labels: { severity: warning }
  annotations:
    summary: {{ "The runtime {{ $labels.runtime }} is offline." | quote }}
    description: "`tunnel-server runtimes show LABEL` says why."
{{- end }}
- alert: TunnelRuntimesLost
  expr: >-
    sum(tunnel_server_runtimes{ {{- $at -}} ,state="online"})
    < 0.8 * sum(tunnel_server_runtimes{ {{- $at -}} ,state="online"} offset 10m) - 1
  for: 2m
  labels: { severity: critical }
  annotations:
    summary: "A fifth of the runtimes went offline within ten minutes."
    description: "A network or a server is lost."
- alert: TunnelServerConfigFaulty
  expr: tunnel_server_config_last_reload_succeeded{ {{- $at -}} } == 0
  for: 5m
  labels: { severity: warning }
  annotations:
    summary: {{ "A file of {{ $labels.pod }} is faulty." | quote }}
    description: "The last good configuration stays in use. The server's log names each fault."
- alert: TunnelServerCertificateExpires
  expr: tunnel_server_certificate_not_after_seconds{ {{- $at -}} } - time() < {{ mul 86400 (int .Values.prometheusRule.certificateDays) }}
  for: 1h
  labels: { severity: critical }
  annotations:
    summary: {{ "The certificate of the {{ $labels.listener }} listener runs out in {{ $value | humanizeDuration }}." | quote }}
    description: "Replace the files in its Secret; the server reads them again."
{{- if .Values.config.auth_url }}
- alert: TunnelPlatformAway
  expr: tunnel_server_platform_away{ {{- $at -}} } == 1
  for: 10m
  labels: { severity: warning }
  annotations:
    summary: {{ "The platform gives {{ $labels.pod }} no answer." | quote }}
    description: "Known tokens continue for auth_outage, others wait."
{{- end }}
- alert: TunnelRuntimeContested
  expr: sum(increase(tunnel_server_handshakes_total{ {{- $at -}} ,result="runtime_contested"}[10m])) > 0
  for: 10m
  labels: { severity: warning }
  annotations:
    summary: "Two instances of a tunnel client fight for a runtime."
    description: "Stop one. The server's events of kind `contested` name the runtime."
- alert: TunnelClientsRefusedForLoad
  expr: >-
    sum(rate(tunnel_server_handshakes_total{ {{- $at -}} ,result="handshake_queue"}[5m])) > 0
    or sum(rate(tunnel_server_connections_refused_total{ {{- $at -}} ,listener="tunnel",cause=~"max_.*"}[5m])) > 0
  for: 15m
  labels: { severity: warning }
  annotations:
    summary: "More tunnel clients dial than the server admits."
    description: "Raise max_handshakes, or the limit of one address (max_tunnel_connections_per_address)."
- alert: TunnelCredentialsCannotBeVerified
  expr: sum(increase(tunnel_server_handshakes_total{ {{- $at -}} ,result="auth_unavailable"}[10m])) > 0
  for: 10m
  labels: { severity: warning }
  annotations:
    summary: "The platform, or the keys of JSON Web Tokens, cannot be reached."
    description: "Tunnel clients with a token that is not known yet are turned away."
- alert: TunnelCredentialRefused
  expr: sum by (result) (increase(tunnel_server_handshakes_total{ {{- $at -}} ,result=~"token_expired|credential_revoked"}[30m])) > 0
  for: 10m
  labels: { severity: info }
  annotations:
    summary: {{ "A tunnel client dials with a credential that is no longer valid ({{ $labels.result }})." | quote }}
    description: "The server's events of kind `refused` name the runtime."
- alert: TunnelRefreshRefused
  expr: sum by (reason) (increase(tunnel_server_refreshes_refused_total{ {{- $at -}} }[30m])) > 0
  labels: { severity: warning }
  annotations:
    summary: {{ "The new token of a tunnel client is refused ({{ $labels.reason }})." | quote }}
    description: "Its session uses the old token until that runs out."
- alert: TunnelSessionsBreak
  expr: sum by (reason) (increase(tunnel_server_sessions_ended_total{ {{- $at -}} ,reason=~"dead|wedged|protocol_error"}[30m])) > 10
  for: 15m
  labels: { severity: warning }
  annotations:
    summary: {{ "Sessions end in disorder ({{ $labels.reason }})." | quote }}
    description: "Paths break, clients hang, or a middlebox interferes: docs/guides/troubleshooting.md."
- alert: TunnelRequestsLost
  expr: sum by (reason) (rate(tunnel_server_problems_total{ {{- $at -}} ,reason=~"session_lost|waiting_limit|server_limit"}[5m])) > 0
  for: 10m
  labels: { severity: warning }
  annotations:
    summary: {{ "Requests are lost or refused ({{ $labels.reason }})." | quote }}
    description: "docs/reference/problems-and-refusals.md says what each reason means."
{{- if include "tunnel-server.isCluster" . }}
- alert: TunnelDirectoryAway
  expr: max by (pod) (tunnel_server_directory_state{ {{- $at -}} ,state!="ok"}) == 1
  for: 2m
  labels: { severity: critical }
  annotations:
    summary: {{ "etcd does not answer {{ $labels.pod }}." | quote }}
    description: "Requests and sessions go on; a runtime cannot move to a new instance: docs/guides/several-nodes.md."
- alert: TunnelPeersAway
  expr: tunnel_server_peer_links{ {{- $at -}} } == 0 and on () count(tunnel_server_peer_links{ {{- $at -}} }) > 1
  for: 5m
  labels: { severity: critical }
  annotations:
    summary: {{ "{{ $labels.pod }} has no link to another node." | quote }}
    description: "Requests for sessions of other nodes fail there. The log says why a link was lost."
{{- end }}
{{- end }}
