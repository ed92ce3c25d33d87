//go:build integration

package k8s

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// metricsAreRead reads what a Prometheus reads by packaging/kubernetes/monitoring: of one operator and of each node, by
// the token that the objects there make. The operators prove that they are operators.
func (s site) metricsAreRead() {
	s.t.Helper()
	root, err := harness.Root()
	if err != nil {
		s.t.Fatal(err)
	}
	s.kubectl("apply", "-f", filepath.Join(root, "packaging", "kubernetes", "monitoring", "account.yaml"))
	secret := func(name, key string) []byte {
		text := s.kubectl("get", "secret", "-n", system, name, "-o", `jsonpath={.data.`+key+`}`)
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(data) == 0 {
			s.t.Fatalf("secret %s has no %s: %v", name, key, err)
		}
		return data
	}
	signer := x509.NewCertPool()
	signer.AppendCertsFromPEM(secret("godwit-webhook", `ca\.crt`))
	s.kubectl("wait", "--for=jsonpath={.data.token}", "--timeout="+limit.String(), "-n", system,
		"secret/godwit-metrics-token")
	token := string(secret("godwit-metrics-token", "token"))
	operators, nodes := "", ""
	for _, n := range s.Nodes() {
		operators += s.scrape("https://"+n.Address+":7447/metrics", token,
			&tls.Config{RootCAs: signer, ServerName: "godwit-webhook.godwit-system.svc"})
		nodes += s.scrape("https://"+n.Address+":7448/metrics/godwitd", token, &tls.Config{InsecureSkipVerify: true})
	}
	for text, wants := range map[string][]string{
		operators: {`godwit_virtualmachine_ready{name="shop",namespace="default"} 1`,
			`leader_election_master_status{name="godwit-operator"} 1`, `godwit_cleanup_pending 0`,
			`godwit_migration_active 0`},
		nodes: {`godwit_start_seconds_count{failed="false",mode="restore"} 1`},
	} {
		for _, want := range wants {
			if strings.Count(text, want) != 1 {
				s.t.Errorf("%d times in the metrics: %s", strings.Count(text, want), want)
			}
		}
	}
}

func (s site) scrape(url, token string, config *tls.Config) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{DialContext: s.Dial, TLSClientConfig: config,
		DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %s %v", url, resp.Status, body, err)
	}
	return string(body)
}
