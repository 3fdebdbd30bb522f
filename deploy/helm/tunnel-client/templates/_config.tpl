{{/* client.toml. */}}

{{/* Keys of `config` that the chart sets, each with the value that sets it. */}}
{{- define "tunnel-client.ownSettings" -}}
server: server
token_file: token.secretName
client_cert: clientCertificate.secretName
client_key: clientCertificate.secretName
ca_file: ca
system_roots: ca.systemRoots
proxy: proxy.url
proxy_auth_file: proxy.authSecretName
no_proxy: proxy.noProxy
proxy_ca_file: proxy.ca
upstream: upstream
route: routes
on_refusal: onRefusal
grace_period: gracePeriod, or serve.gracePeriod
admin_listen: admin.address and admin.port
listen: serve.address and serve.port
listen_cert: serve.tlsSecretName
listen_key: serve.tlsSecretName
drain_delay: serve.drainDelay
{{- end }}

{{/* Settings that a running client takes over: those with "at once" in docs/reference/settings-client.md. The routes are among
     them, too. `deploy/check-charts` compares the two. */}}
{{- define "tunnel-client.reloadedSettings" -}}
upstream upstream_ca_file upstream_connect_timeout upstream_head_timeout upstream_http
{{- end }}

{{/* All settings of the file, as YAML. */}}
{{- define "tunnel-client.settings" -}}
{{- $own := include "tunnel-client.ownSettings" . | fromYaml }}
{{- range $key, $value := .Values.config }}
{{- if hasKey $own $key }}
{{- fail (printf "config.%s is set by the chart: use %s" $key (get $own $key)) }}
{{- end }}
{{- end }}
{{- $settings := dict "admin_listen" (printf "%s:%d" .Values.admin.address (int .Values.admin.port)) }}
{{- with .Values.upstream }}
{{- $_ := set $settings "upstream" . }}
{{- end }}
{{- if include "tunnel-client.isServe" . }}
{{- with .Values.serve }}
{{- $_ := set $settings "listen" (printf "%s:%d" .address (int .port)) }}
{{- $_ := set $settings "drain_delay" .drainDelay }}
{{- $_ := set $settings "grace_period" .gracePeriod }}
{{- if .tlsSecretName }}
{{- $_ := set $settings "listen_cert" "/etc/tunnel/listen-tls/tls.crt" }}
{{- $_ := set $settings "listen_key" "/etc/tunnel/listen-tls/tls.key" }}
{{- end }}
{{- end }}
{{- else }}
{{- $_ := set $settings "grace_period" .Values.gracePeriod }}
{{- $_ := set $settings "on_refusal" .Values.onRefusal }}
{{- with .Values.server }}
{{- $_ := set $settings "server" . }}
{{- end }}
{{- with .Values.token }}
{{- if .secretName }}
{{- $_ := set $settings "token_file" (printf "/etc/tunnel/token/%s" .key) }}
{{- end }}
{{- end }}
{{- if .Values.clientCertificate.secretName }}
{{- $_ := set $settings "client_cert" "/etc/tunnel/client-tls/tls.crt" }}
{{- $_ := set $settings "client_key" "/etc/tunnel/client-tls/tls.key" }}
{{- end }}
{{- with .Values.ca }}
{{- if or .secretName .configMapName }}
{{- $_ := set $settings "ca_file" (printf "/etc/tunnel/ca/%s" .key) }}
{{- end }}
{{- if not .systemRoots }}
{{- $_ := set $settings "system_roots" false }}
{{- end }}
{{- end }}
{{- with .Values.proxy }}
{{- if .url }}
{{- $_ := set $settings "proxy" .url }}
{{- end }}
{{- if .authSecretName }}
{{- $_ := set $settings "proxy_auth_file" (printf "/etc/tunnel/proxy-auth/%s" .authKey) }}
{{- end }}
{{- if .noProxy }}
{{- $_ := set $settings "no_proxy" .noProxy }}
{{- end }}
{{- if or .ca.secretName .ca.configMapName }}
{{- $_ := set $settings "proxy_ca_file" (printf "/etc/tunnel/proxy-ca/%s" .ca.key) }}
{{- end }}
{{- end }}
{{- end }}
{{- merge $settings .Values.config | toYaml }}
{{- end }}

{{/* The table of routes. With neither routes nor an upstream, one route that says so. */}}
{{- define "tunnel-client.routes" -}}
{{- if or .Values.routes .Values.upstream }}
{{- toYaml .Values.routes }}
{{- else }}
- name: no-upstream
  path: /*
  respond:
    status: 503
    content_type: text/plain
    body: "The request has reached the tunnel client, whose chart has no upstream: set `upstream` or `routes`.\n"
{{- end }}
{{- end }}

{{/* The file. */}}
{{- define "tunnel-client.toml" -}}
{{- range $key, $value := include "tunnel-client.settings" . | fromYaml }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "tunnel-client.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range include "tunnel-client.routes" . | fromYamlArray }}

[[route]]
name = {{ toRawJson .name }}
{{- range $key, $value := omit . "name" }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "tunnel-client.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A value in TOML, on one line. Strings, numbers and booleans are written as in JSON. */}}
{{- define "tunnel-client.tomlValue" -}}
{{- if kindIs "map" . }}
{{- $pairs := list }}
{{- range $key, $value := . }}
{{- $name := regexMatch "^[A-Za-z0-9_-]+$" $key | ternary $key (toRawJson $key) }}
{{- $pairs = append $pairs (printf "%s = %s" $name (include "tunnel-client.tomlValue" $value)) }}
{{- end }}
{{- if $pairs }}{ {{ join ", " $pairs }} }{{ else }}{}{{ end }}
{{- else if kindIs "slice" . }}
{{- $items := list }}
{{- range . }}
{{- $items = append $items (include "tunnel-client.tomlValue" .) }}
{{- end -}}
[{{ join ", " $items }}]
{{- else }}
{{- toRawJson . }}
{{- end }}
{{- end }}

{{/* A hash of those settings that a running client does not take over. As an annotation of the pod it has it replaced when one
     of these changes, and only then: changed routes, tokens and certificates take effect in the running client. */}}
{{- define "tunnel-client.restartChecksum" -}}
{{- $settings := include "tunnel-client.settings" . | fromYaml }}
{{- range regexSplit "\\s+" (include "tunnel-client.reloadedSettings" .) -1 }}
{{- $_ := unset $settings . }}
{{- end }}
{{- toRawJson $settings | sha256sum }}
{{- end }}
