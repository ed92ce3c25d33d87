package eviction_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/eviction"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

// answers is a reader whose every answer is an error.
type answers struct {
	client.Reader
	err error
}

func (a answers) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return a.err
}

// of404 is a 404 that is not about an object.
func of404(name string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", corev1.Resource("pods"), name,
		"404 page not found", 0, true)
}

// Only the API server's word that there is no such pod is "gone": an eviction that is allowed may end the VM.
func TestOnlyAMissingPodIsGone(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "p")
	for name, test := range map[string]struct {
		err   error
		allow bool
	}{
		"no such pod":        {gone, true},
		"no such kind":       {of404(""), false},
		"a 404 of a proxy":   {of404("p"), false},
		"another kind's 404": {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, ""), false},
		"no answer":          {errors.New("connection refused"), false},
		"forbidden":          {apierrors.NewForbidden(corev1.Resource("pods"), "p", nil), false},
	} {
		w := eviction.Webhook{View: operator.View{Reader: answers{err: test.err}, Engine: true, OnStop: true}}
		got := w.Answer(t.Context(), &admissionv1.AdmissionRequest{Namespace: "ns", Name: "p"})
		if got.Allowed != test.allow || !got.Allowed && got.Result.Code != http.StatusTooManyRequests {
			t.Errorf("%s: answered %+v", name, got)
		}
	}
}

// What is no review is refused, and a large one is not read to its end.
func TestBadReviews(t *testing.T) {
	for _, body := range []string{"", "{}", "no json", strings.Repeat("x", 2<<20)} {
		to := httptest.NewRecorder()
		eviction.Webhook{}.ServeHTTP(to, httptest.NewRequest(http.MethodPost, eviction.Path, bytes.NewBufferString(body)))
		if to.Code != http.StatusBadRequest {
			t.Errorf("%.20q: %d", body, to.Code)
		}
	}
}
