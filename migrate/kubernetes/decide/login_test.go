package decide_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node gets a login for the place of a VM that it has, or that comes to it or leaves it. It also gets one where it is
// to delete. The controller must have given that place to the VM. What a node has written into the record counts for
// nothing: in such a place its own login counts, and no class has a say.
func TestMayLogIn(t *testing.T) {
	const at = "reg.example/gold/u1"
	given := func(rec *nodev1.Record) *nodev1.Record { rec.Uid, rec.Prefix = "u1", "reg.example/gold"; return rec }
	op := func(o *nodev1.Operation) *nodev1.Record {
		return given(&nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:1"}, Home: "h", Operation: o})
	}
	ref := &nodev1.SnapshotRef{Repository: at, Given: true, Node: "m"}
	owed := func(o *nodev1.Owed) []*nodev1.Owed { return []*nodev1.Owed{o} }
	onA := &nodev1.Owner{Node: "a"}
	for name, test := range map[string]struct {
		node  string
		rec   *nodev1.Record
		owed  []*nodev1.Owed
		given bool
		may   bool // and have the keys, unless it is to delete
	}{
		"it has the VM":          {"a", given(&nodev1.Record{Owner: onA}), nil, true, true},
		"another has it":         {"b", given(&nodev1.Record{Owner: onA}), nil, true, false},
		"nobody asks":            {"", given(&nodev1.Record{}), nil, true, false},
		"it had the VM":          {"h", op(nil), nil, true, false},
		"the VM leaves it":       {"s", op(&nodev1.Operation{Source: "s"}), nil, true, true},
		"the VM comes to it":     {"d", op(&nodev1.Operation{Destination: "d"}), nil, true, true},
		"an operation of others": {"x", op(&nodev1.Operation{Source: "s", Destination: "d"}), nil, true, false},
		"a checkpoint that is ordered": {"a", &nodev1.Record{Uid: "u1", Owner: onA,
			Operation: &nodev1.Operation{Source: "a", Prefix: "reg.example/gold"}}, nil, true, true},
		"a snapshot that was ordered": {"a", &nodev1.Record{Uid: "u1", Owner: onA,
			Snapshots: []*nodev1.SnapshotRef{ref}}, nil, true, true},
		"where its node has always stored": {"a", &nodev1.Record{Uid: "u1", Owner: onA, Repository: at,
			Operation: &nodev1.Operation{Source: "a", Repository: at}, Snapshots: []*nodev1.SnapshotRef{{Repository: at}}},
			nil, false, false},
		"a VM without a class": {"a", &nodev1.Record{Uid: "u1", Owner: onA}, nil, false, false},
		"another VM's place":   {"a", &nodev1.Record{Uid: "u2", Prefix: "reg.example/gold", Owner: onA}, nil, false, false},
		"it is to delete":      {"m", nil, owed(&nodev1.Owed{Snapshot: ref}), true, true},
		"it stays":             {"m", nil, owed(&nodev1.Owed{Snapshot: ref, Hold: &nodev1.Hold{}}), true, false},
		"another deletes":      {"m", nil, owed(&nodev1.Owed{Snapshot: ref, Payer: "p"}), true, false},
		"a deletion elsewhere": {"m", nil, owed(&nodev1.Owed{Snapshot: &nodev1.SnapshotRef{Repository: "reg.example/x/u1",
			Given: true, Node: "m"}}), false, false},
		"a deletion that a node has made up": {"m", nil, owed(&nodev1.Owed{Snapshot: &nodev1.SnapshotRef{Repository: at,
			Node: "m"}}), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide.MayLogIn(test.node, at, test.rec, test.owed); got != test.may {
				t.Errorf("%t, want %t", got, test.may)
			}
			if got := decide.MayHaveKeys(test.node, at, test.rec); got != (test.may && len(test.owed) == 0) {
				t.Errorf("keys: %t", got)
			}
			if got := decide.GivenPlace(at, test.rec, test.owed); got != test.given {
				t.Errorf("given: %t, want %t", got, test.given)
			}
		})
	}
}

// What is wrong with a Secret is told with its key and the remedy, and without a word of what is in it. A Secret of
// another type, such as the CA of the cluster, is never read further.
func TestLoginOf(t *testing.T) {
	auth := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, test := range map[string]struct {
		text string
		want string // USER:PASSWORD, or a part of what is told
		ok   bool
	}{
		"auth":   {`{"auths":{"reg.example:5000":{"auth":"` + auth("u:pass:w0rd") + `"}}}`, "u:pass:w0rd", true},
		"fields": {`{"auths":{"reg.example:5000":{"username":"u","password":"w0rd"}}}`, "u:w0rd", true},
		"a URL":  {`{"auths":{"https://reg.example:5000/v2/":{"auth":"` + auth("u:w0rd") + `"}}}`, "u:w0rd", true},
		"of a path": {`{"auths":{"reg.example:5000":{"auth":"` + auth("a:b") +
			`"},"reg.example:5000/gold":{"auth":"` + auth("u:w0rd") + `"}}}`, "u:w0rd", true},
		"of another path": {`{"auths":{"reg.example:5000/gol":{"auth":"` + auth("u:w0rd") + `"}}}`,
			"no login for reg.example:5000", false},
		"another host": {`{"auths":{"reg.example":{"auth":"` + auth("u:w0rd") + `"}}}`,
			"no login for reg.example:5000", false},
		"nothing":          {``, "no configuration of docker", false},
		"no JSON":          {`w0rd`, "no configuration of docker", false},
		"an empty one":     {`{}`, "no login for reg.example:5000", false},
		"no base64":        {`{"auths":{"reg.example:5000":{"auth":"w0rd!"}}}`, "malformed or empty", false},
		"no password":      {`{"auths":{"reg.example:5000":{"auth":"` + auth("w0rd") + `"}}}`, "malformed or empty", false},
		"an empty account": {`{"auths":{"reg.example:5000":{}}}`, "malformed or empty", false},
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
				Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(test.text)}}
			login, why := decide.LoginOf(secret, "reg.example:5000/gold/u1")
			if both := login.GetUsername() + ":" + login.GetPassword(); test.ok != (login != nil) ||
				test.ok && both != test.want || test.ok != (why == "") {
				t.Fatalf("%v, %q", login, why)
			}
			if !test.ok && (!strings.Contains(why, test.want) || !strings.Contains(why, ".dockerconfigjson") ||
				!strings.Contains(why, "kubectl create secret docker-registry") || strings.Contains(why, "w0rd")) {
				t.Errorf("told %q", why)
			}
			secret.Type = corev1.SecretTypeTLS
			login, why = decide.LoginOf(secret, "reg.example:5000/gold/u1")
			if login != nil || !strings.Contains(why, "kubernetes.io/tls") {
				t.Errorf("of another type: %q", why)
			}
		})
	}
	twice := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}
	twice.Data = map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"https://reg.example/v1/":{"auth":"` +
		auth("old:p") + `"},"reg.example":{"auth":"` + auth("u:p") + `"},"http://reg.example":{"auth":"` + auth("x:p") +
		`"}}}`)}
	for range 50 { // in whatever order a map has
		if login, why := decide.LoginOf(twice, "reg.example/vms/u1"); login.GetUsername() != "u" {
			t.Fatalf("of three entries of one registry: %v, %q", login.GetUsername(), why)
		}
	}
	hub := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}
	hub.Data = map[string][]byte{corev1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://` + name.DefaultRegistry + `/v1/":{"auth":"` + auth("u:p") + `"}}}`)}
	alias := strings.TrimPrefix(name.DefaultRegistry, "index.")
	if login, why := decide.LoginOf(hub, alias+"/team/vms/u1"); login.GetUsername() != "u" {
		t.Errorf("of Docker's own registry: %q", why)
	}
}

// Several classes may have one repository. Those that allow the namespace go first; two Secrets are told apart by the
// caller, which refuses them. A key that is not wanted makes no difference.
func TestSecretsOfARepository(t *testing.T) {
	with := func(name string) func(*v1alpha1.VMSnapshotClass) {
		return func(c *v1alpha1.VMSnapshotClass) {
			c.Spec.Repository, c.Spec.PullSecretRef = "r/p", &v1alpha1.SecretRef{Namespace: "n", Name: name}
		}
	}
	others := func(c *v1alpha1.VMSnapshotClass) { c.Spec.AllowedNamespaces.MatchLabels["team"] = "b" }
	ns := hasClass().Namespace
	all := []v1alpha1.VMSnapshotClass{*classOf("none"), *classOf("a", with("s1")), *classOf("b", with("s1")),
		*classOf("c", with("s2"), others)}
	seals := *classOf("seals", with("s1"), func(c *v1alpha1.VMSnapshotClass) {
		c.Spec.SealSecretRef, c.Spec.PullSecretRef = c.Spec.PullSecretRef, nil
	})
	open := *classOf("open", func(c *v1alpha1.VMSnapshotClass) { c.Spec.Repository = "r/p" })
	for name, test := range map[string]struct {
		all  []v1alpha1.VMSnapshotClass
		ns   *corev1.Namespace
		keys decide.Keys
		want string
	}{
		"allowed": {all, ns, decide.AllKeys, "a"}, "of no namespace": {all, nil, decide.AllKeys, "a c"},
		"none allows it any more": {all[3:], ns, decide.AllKeys, "c"}, "no login": {all[:1], ns, decide.AllKeys, ""},
		"the node's own":       {append(all[3:4:4], open), ns, decide.AllKeys, ""},
		"both allow it":        {append(all[1:2:2], open), ns, decide.AllKeys, "a"},
		"two":                  {append(all[1:2:2], *classOf("d", with("s3"))), ns, decide.AllKeys, "a d"},
		"a key to seal":        {append(all[1:2:2], seals), ns, decide.Keys{Seal: true}, "a seals"},
		"no key is wanted":     {append(all[1:2:2], seals), ns, decide.Keys{}, "a"},
		"no key, and no login": {[]v1alpha1.VMSnapshotClass{seals, open}, ns, decide.Keys{}, ""},
		"another key":          {[]v1alpha1.VMSnapshotClass{seals, open}, ns, decide.Keys{Sign: true}, ""},
	} {
		var got []string
		for _, c := range decide.Secrets(test.all, "r/p", test.ns, test.keys) {
			got = append(got, c.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %q", name, got, test.want)
		}
	}
}
