package controlplane

import (
	"os"
	"path/filepath"
)

// AuditVariable of the environment names a directory. Each API server writes there who asked what of it.
const AuditVariable = "GODWIT_AUDIT"

// auditPolicy has one line for each request, without its content.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
	"omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}]}`

// auditArgs are the arguments of an API server that is audited; none: it is not.
func (s *Server) auditArgs() ([]string, error) {
	dir := os.Getenv(AuditVariable)
	if dir == "" {
		return nil, nil
	}
	policy := s.Path("audit.json")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	log := filepath.Join(dir, filepath.Base(s.Dir)+".log")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-maxsize=1000"}, nil
}
