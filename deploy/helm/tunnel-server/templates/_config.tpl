{{/* server.toml. */}}

{{/* Keys of `config` that the chart sets, each with the value that sets it. */}}
{{- define "tunnel-server.ownSettings" -}}
tunnel_listen: tunnel.address and tunnel.port
tunnel_host: tunnel.onPublicListener and tunnel.host
tunnel_tls: tunnel.tls.enabled
tls_cert: tunnel.tls.secretName
tls_key: tunnel.tls.secretName
public_listen: public.address and public.port
public_tls_cert: public.tls.secretName
public_tls_key: public.tls.secretName
admin_listen: admin.address and admin.port
admin_token_file: admin.tokenSecretName
admin_host: admin.hosts
domain: domain
runtimes: runtimes.secretName
revocations: revocations.secretName
etcd: etcd.endpoints
etcd_ca: etcd.ca
etcd_cert: etcd.clientCertificateSecretName
etcd_key: etcd.clientCertificateSecretName
etcd_user: etcd.user.secretName
etcd_password_file: etcd.user.secretName
node: the name of the pod
peer_listen: peers.address and peers.port
peer_advertise: peers.advertise
peer_ca: peers.secretName
peer_cert: peers.secretName
peer_key: peers.secretName
grace_period: drain.gracePeriod
drain_delay: drain.delay
drain_spread: drain.spread
offline_wait: drain.offlineWait
{{- end }}

{{/* Settings that a running server does not take over: those with "restart" or "depends" in docs/reference/settings-server.md.
     `deploy/check-charts` compares the two. */}}
{{- define "tunnel-server.restartSettings" -}}
tunnel_listen tunnel_host tunnel_tls tls_cert public_listen public_tls_cert admin_listen admin_host domain managed_runtimes admin_revocations jwks jwt_issuer jwt_audience jwt_account_claim
jwt_runtime_claim jwt_leeway auth_url auth_token_file auth_ca_file auth_timeout auth_concurrency auth_cache auth_outage
expiry_grace max_handshakes handshake_queue etcd etcd_prefix node without_directory zone peer_listen peer_advertise
acme_directory acme_contact acme_dir acme_ca_file acme_eab_kid acme_eab_key_file webhook_url webhook_events
otlp_endpoint otlp_headers_file otlp_ca_file trace_ratio shards log_format
{{- end }}

{{/* All settings of the file, as YAML. Those that differ from pod to pod are environment variables. */}}
{{- define "tunnel-server.settings" -}}
{{- $own := include "tunnel-server.ownSettings" . | fromYaml }}
{{- range $key, $value := .Values.config }}
{{- if hasKey $own $key }}
{{- fail (printf "config.%s is set by the chart: use %s" $key (get $own $key)) }}
{{- end }}
{{- end }}
{{- $name := printf "%s-admin" (include "tunnel-server.fullname" .) }}
{{- $inNamespace := printf "%s.%s" $name .Release.Namespace }}
{{- $settings := dict
      "tunnel_listen" (printf "%s:%d" .Values.tunnel.address (int .Values.tunnel.port))
      "public_listen" (printf "%s:%d" .Values.public.address (int .Values.public.port))
      "admin_listen" (printf "%s:%d" .Values.admin.address (int .Values.admin.port))
      "admin_host" (concat (list $name $inNamespace (printf "%s.svc" $inNamespace)) .Values.admin.hosts)
      "grace_period" .Values.drain.gracePeriod
      "drain_delay" .Values.drain.delay
      "drain_spread" .Values.drain.spread
      "offline_wait" .Values.drain.offlineWait }}
{{- if .Values.tunnel.onPublicListener }}
{{- $_ := set $settings "tunnel_listen" (printf "%s:%d" .Values.public.address (int .Values.public.port)) }}
{{- $_ := set $settings "tunnel_host" (include "tunnel-server.tunnelHosts" (dict "root" . "given" list "use" "tunnel.onPublicListener") | fromJsonArray) }}
{{- if ne .Values.tunnel.tls.enabled .Values.public.tls.enabled }}
{{- fail "tunnel.onPublicListener: one listener has TLS or not: give tunnel.tls.enabled and public.tls.enabled the same value" }}
{{- end }}
{{- end }}
{{- if .Values.tunnel.tls.enabled }}
{{- if .Values.tunnel.tls.secretName }}
{{- $_ := set $settings "tls_cert" "/etc/tunnel/tunnel-tls/tls.crt" }}
{{- $_ := set $settings "tls_key" "/etc/tunnel/tunnel-tls/tls.key" }}
{{- end }}
{{- else }}
{{- $_ := set $settings "tunnel_tls" false }}
{{- if not .Values.config.trusted_proxies }}
{{- fail "tunnel.tls.enabled: false needs config.trusted_proxies: the networks of what terminates TLS" }}
{{- end }}
{{- end }}
{{- if and .Values.public.tls.enabled .Values.public.tls.secretName }}
{{- $_ := set $settings "public_tls_cert" "/etc/tunnel/public-tls/tls.crt" }}
{{- $_ := set $settings "public_tls_key" "/etc/tunnel/public-tls/tls.key" }}
{{- end }}
{{- with .Values.domain }}
{{- $_ := set $settings "domain" . }}
{{- end }}
{{- with .Values.runtimes }}
{{- if .secretName }}
{{- $_ := set $settings "runtimes" (printf "/etc/tunnel/runtimes/%s" .key) }}
{{- end }}
{{- end }}
{{- with .Values.revocations }}
{{- if .secretName }}
{{- $_ := set $settings "revocations" (printf "/etc/tunnel/revocations/%s" .key) }}
{{- end }}
{{- end }}
{{- if .Values.admin.tokenSecretName }}
{{- $_ := set $settings "admin_token_file" (printf "/etc/tunnel/admin/%s" .Values.admin.tokenKey) }}
{{- end }}
{{- if include "tunnel-server.isCluster" . }}
{{- $_ := set $settings "etcd" .Values.etcd.endpoints }}
{{- with .Values.etcd.ca }}
{{- if or .secretName .configMapName }}
{{- $_ := set $settings "etcd_ca" (printf "/etc/tunnel/etcd-ca/%s" .key) }}
{{- end }}
{{- end }}
{{- if .Values.etcd.clientCertificateSecretName }}
{{- $_ := set $settings "etcd_cert" "/etc/tunnel/etcd-tls/tls.crt" }}
{{- $_ := set $settings "etcd_key" "/etc/tunnel/etcd-tls/tls.key" }}
{{- end }}
{{- with .Values.etcd.user }}
{{- if .secretName }}
{{- $_ := set $settings "etcd_password_file" (printf "/etc/tunnel/etcd-user/%s" .passwordKey) }}
{{- end }}
{{- end }}
{{- $_ := set $settings "peer_listen" (printf "%s:%d" .Values.peers.address (int .Values.peers.port)) }}
{{- $_ := set $settings "peer_ca" "/etc/tunnel/peers/peer-ca.pem" }}
{{- end }}
{{- merge $settings .Values.config | toYaml }}
{{- end }}

{{/* The settings as TOML. A JSON string, number, boolean or array of these is TOML as well. */}}
{{- define "tunnel-server.toml" -}}
{{- range $key, $value := include "tunnel-server.settings" . | fromYaml }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ toRawJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* A hash of those settings that a running server does not take over. As an annotation of the pods it has them replaced when
     one of these changes, and only then: all other changes of the file, and of every mounted Secret, take effect in the
     running server. Of the settings with "depends" only what needs a restart is in it. */}}
{{- define "tunnel-server.restartChecksum" -}}
{{- $settings := include "tunnel-server.settings" . | fromYaml }}
{{- $restart := dict }}
{{- range regexSplit "\\s+" (include "tunnel-server.restartSettings" .) -1 }}
{{- if hasKey $settings . }}
{{- $value := get $settings . }}
{{- if or (has . (list "tls_cert" "public_tls_cert" "auth_token_file")) (and (eq . "jwks") (not (hasPrefix "https:" (toString $value)))) }}
{{- $value = "a file" }}
{{- end }}
{{- $_ := set $restart . $value }}
{{- end }}
{{- end }}
{{- toRawJson $restart | sha256sum }}
{{- end }}
