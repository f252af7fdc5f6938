{{- define "cedargate.name" -}}
cedargate
{{- end }}

{{- define "cedargate.labels" -}}
app.kubernetes.io/name: cedargate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "cedargate.selector" -}}
app.kubernetes.io/name: cedargate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cedargate.policies" -}}
{{- if .Values.policies.existingConfigMap -}}
{{ .Values.policies.existingConfigMap }}
{{- else if .Values.policies.files -}}
cedargate-policies
{{- end -}}
{{- end }}
