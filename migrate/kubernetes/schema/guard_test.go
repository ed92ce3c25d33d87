package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// served answers each schema as this build has it. It was changed so long ago.
type served struct {
	made, changed, served time.Duration
	lacks, version        string // that of VirtualMachines lacks this field of the spec, and has this version
}

func (s served) RoundTrip(req *http.Request) (*http.Response, error) {
	all, err := own()
	if err != nil {
		return nil, err
	}
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-ago)) }
	changed := at(s.changed)
	o := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", UID: "u",
		CreationTimestamp: at(s.made), ManagedFields: []metav1.ManagedFieldsEntry{{Time: &changed}}}}
	o.Name = req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
	if o.Name == "virtualmachines.godwit.dev" && s.version != "" {
		delete(all[o.Name].Properties["spec"].Properties, s.lacks)
		o.ResourceVersion, o.Generation = s.version, int64(len(s.lacks))
	}
	o.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: v1alpha1.GroupVersion.Version, Served: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: all[o.Name]}}}
	o.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{LastTransitionTime: at(s.served)}}
	data, err := json.Marshal(o)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data)), Request: req}, err
}

// A schema that has changed just before this process began may be unknown to another API server yet.
func TestJustChangedAtTheFirstLook(t *testing.T) {
	for name, test := range map[string]struct {
		is   served
		wait bool
	}{
		"long ago":       {served{made: time.Hour, changed: time.Hour, served: time.Hour}, false},
		"just made":      {served{made: 0, changed: time.Hour, served: time.Hour}, true},
		"just changed":   {served{made: time.Hour, changed: Settle / 2, served: time.Hour}, true},
		"served now":     {served{made: time.Hour, changed: time.Hour, served: Settle / 2}, true},
		"by their clock": {served{made: time.Hour, changed: -time.Minute, served: time.Hour}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, err := New(&rest.Config{Host: "http://api", Transport: test.is, QPS: -1})
				if err != nil {
					t.Fatal(err)
				}
				if err := g.Check(t.Context()); errors.Is(err, ErrOutdated) != test.wait {
					t.Errorf("at first: %v", err)
				}
				time.Sleep(Settle)
				if err := g.Check(t.Context()); err != nil {
					t.Errorf("later: %v", err)
				}
			})
		})
	}
}
