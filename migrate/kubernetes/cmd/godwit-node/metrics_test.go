package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
)

// godwitd's metrics come through, and the reader's token does not go there. Without godwitd the answer is an error.
func TestScrape(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked *http.Request
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		_, _ = w.Write([]byte("godwit_x 1\n"))
	})}
	go func() { _ = server.Serve(l) }()
	handler := scrape(socket)
	get := func() *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/metrics/godwitd?x=y", nil)
		req.Header.Set("Authorization", "Bearer secret")
		handler.ServeHTTP(answer, req)
		return answer
	}
	if got := get(); got.Code != http.StatusOK || got.Body.String() != "godwit_x 1\n" {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	if asked.URL.String() != "/metrics" || asked.Header.Get("Authorization") != "" {
		t.Errorf("godwitd was asked %s with %v", asked.URL, asked.Header)
	}
	_ = server.Close()
	if got := get(); got.Code != http.StatusBadGateway {
		t.Errorf("without godwitd: %d", got.Code)
	}
}
