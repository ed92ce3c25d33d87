//go:build integration

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	nodek8s "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

var server *apitest.Server

// shared has one set of figures for all operators of this process.
type shared struct{ *prometheus.Registry }

// Register implements prometheus.Registerer. The figures of a second operator are left out.
func (s shared) Register(c prometheus.Collector) error {
	err := s.Registry.Register(c)
	if twice := (prometheus.AlreadyRegisteredError{}); errors.As(err, &twice) {
		return nil
	}
	return err
}

func TestMain(m *testing.M) {
	metrics.Registry = shared{prometheus.NewRegistry()}
	os.Exit(apitest.Main(m, func(s *apitest.Server) {
		server = s
		for _, o := range []client.Object{
			&nodek8s.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "godwit"}, Handler: "godwit"},
			worker("a"), worker("b"), worker("c"),
		} {
			if err := api().Create(context.Background(), o); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}))
}

// worker is a node of a cloud whose label of the host's name is another text.
func worker(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelHostname: "host-of-" + name}}}
}

// api is a client without a cache.
func api() client.WithWatch {
	scheme, err := operator.Scheme()
	if err == nil {
		var c client.WithWatch
		if c, err = client.NewWithWatch(server.REST(), client.Options{Scheme: scheme}); err == nil {
			return c
		}
	}
	panic(err)
}
