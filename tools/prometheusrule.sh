#!/bin/bash
# Makes the object PrometheusRule of the alert rules: the same groups, below spec.
#   tools/prometheusrule.sh >packaging/kubernetes/monitoring/rules.yaml
set -euo pipefail
cd "$(dirname "$0")/../packaging/prometheus"
cat <<'EOF'
# Made by tools/prometheusrule.sh of packaging/prometheus/*.rules.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: godwit
  namespace: godwit-system
spec:
  groups:
EOF
sed -e '/^#/d' -e '/^groups:$/d' -e 's/^/  /' ./*.rules.yml
