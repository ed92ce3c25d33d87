//go:build integration

package nodeagent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// The metrics of a node's godwitd are for those who may read that path.
func TestMetricsNeedAToken(t *testing.T) {
	server.Readers(t)
	at := strings.Replace(apitest.FreeAddress(t), "127.0.0.1", "", 1)
	run(t, func(ctx context.Context, log *slog.Logger) error {
		return Run(ctx, Options{Config: as("godwit-node"), Node: "a", Namespace: system, Daemon: newGodwitd(t), Log: log,
			Metrics: at, Scraped: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("godwit_of_this_test 1"))
			})})
	})
	url := "https://127.0.0.1" + at + ScrapePath
	reader := server.TokenOf(t, "godwit-metrics")
	apitest.Eventually(t, "the metrics are served", func() (bool, error) {
		code, body := apitest.Scrape(t, url, reader)
		return code == http.StatusOK && body == "godwit_of_this_test 1", fmt.Errorf("%d %s", code, body)
	})
	if code, body := apitest.Scrape(t, url, ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s", code, body)
	}
	if code, body := apitest.Scrape(t, url, server.TokenOf(t, "godwit-operator")); code != http.StatusForbidden {
		t.Errorf("with the token of the operator: %d %s", code, body)
	}
}
