package apitest

import (
	"crypto/tls"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Readers makes the account that reads metrics, as a person does.
func (s *Server) Readers(t *testing.T) {
	t.Helper()
	account := filepath.Join(s.root, "packaging", "kubernetes", "monitoring", "account.yaml")
	if _, err := s.Kubectl(t.Context(), "", "apply", "-f", account); err != nil {
		t.Fatal(err)
	}
}

// TokenOf is a token of an account of godwit's namespace, as a pod has one.
func (s *Server) TokenOf(t *testing.T, account string) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	req, err := client.CoreV1().ServiceAccounts(System).CreateToken(t.Context(), account, &authentication.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return req.Status.Token
}

// Scrape reads metrics with a token; empty: without one. It checks no certificate.
func Scrape(t *testing.T, url, token string) (code int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}
