{{/* The alerts of rules.yaml, for the series that the ServiceMonitor of this release collects. */}}
{{- define "tunnel-server.alerts" -}}
{{- $at := printf "namespace=%q,job=%q" .Release.Namespace (printf "%s-admin" (include "tunnel-server.fullname" .)) }}
{{- $rules := list }}
{{- range (.Files.Get "rules.yaml" | fromYaml).groups }}
{{- if eq .name "tunnel-server" }}
{{- range .rules }}
{{- $expr := .expr | replace "{" (printf "{%s," $at) | replace ",}" "}" }}
{{- $expr = $expr | replace "7 * 86400" (printf "%d * 86400" (int $.Values.prometheusRule.certificateDays)) }}
{{- $rules = append $rules (set . "expr" $expr) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}
