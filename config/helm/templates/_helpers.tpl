{{- define "canopy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "canopy.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "canopy.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "canopy.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "canopy.selector" -}}
app.kubernetes.io/name: {{ include "canopy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "canopy.labels" -}}
{{ include "canopy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The Service by which the nodes find each other. */ -}}
{{- define "canopy.nodes" -}}
{{ include "canopy.fullname" . }}-nodes
{{- end }}

{{- define "canopy.httpSecret" -}}
{{- default (printf "%s-http" (include "canopy.fullname" .)) .Values.http.existingSecret }}
{{- end }}

{{- /* What the values say, as the end of the settings: tables may follow each other in any order. */ -}}
{{- define "canopy.settings" -}}
{{ .Values.settings }}
{{- if .Values.users.existingSecret }}

[[authenticator]]
name = "users"
type = "password-file"
path = "/run/canopy/users/passwd"
{{- end }}
{{- if .Values.mqtt.enabled }}

[[listener]]
name = "mqtt"
url = "mqtt://0.0.0.0:{{ .Values.mqtt.port }}"
{{- end }}
{{- if .Values.tls.enabled }}

[[listener]]
name = "mqtts"
url = "mqtts://0.0.0.0:{{ .Values.tls.port }}"

[listener.tls]
certificate = "/run/canopy/tls/tls.crt"
key = "/run/canopy/tls/tls.key"
{{- end }}
{{- if .Values.websocket.enabled }}

[[listener]]
name = "websocket"
url = "ws://0.0.0.0:{{ .Values.websocket.port }}"
path = {{ .Values.websocket.path | toJson }}
origins = {{ .Values.websocket.origins | toJson }}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}

[cluster]
name = {{ include "canopy.fullname" . | toJson }}
listen = "mqtts://0.0.0.0:{{ .Values.cluster.port }}"
ca_file = "/run/canopy/cluster/ca.crt"
{{- range $number := until (int .Values.replicas) }}
{{- $name := printf "%s-%d" (include "canopy.fullname" $) $number }}

[[cluster.nodes]]
name = {{ $name | toJson }}
address = "mqtts://{{ $name }}.{{ include "canopy.nodes" $ }}.{{ $.Release.Namespace }}.svc:{{ $.Values.cluster.port }}"
{{- end }}
{{- end }}
{{- end }}
