package decide_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func private(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func public(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// A Secret gives all of its keys, or none, and what is wrong with it is told without a word of it. One of another type,
// such as the CA of the cluster, is never read further.
func TestSecretsWithKeys(t *testing.T) {
	line := func(b byte, size int) string {
		return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, size)) + "\n"
	}
	ed := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ref := &v1alpha1.SecretRef{Namespace: "godwit-system", Name: "s"}
	both := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef, c.Spec.SignSecretRef = ref, ref })
	secrets := decide.SecretsOf(both, decide.AllKeys)
	if len(secrets) != 2 || len(decide.SecretsOf(both, decide.Keys{})) != 0 {
		t.Fatalf("secrets %v", secrets)
	}
	seals, signs := secrets[0], secrets[1]
	of := func(data ...string) map[string][]byte {
		all := map[string][]byte{}
		for i := 0; i < len(data); i += 2 {
			all[data[i]] = []byte(data[i+1])
		}
		return all
	}
	for name, test := range map[string]struct {
		of    decide.Secret
		data  map[string][]byte
		wants [3]int // keys that seal, bytes of the one that signs (1: some), trusted ones
	}{
		"one":                 {seals, of("keys", line(1, 32)), [3]int{1}},
		"without a line feed": {seals, of("keys", strings.TrimSpace(line(1, 32))), [3]int{1}},
		"two, and room":       {seals, of("keys", "\n"+line(1, 32)+"\r\n"+line(2, 32)), [3]int{2}},
		"most":                {seals, of("keys", strings.Repeat(line(1, 32), 64)), [3]int{64}},
		"too many":            {seals, of("keys", strings.Repeat(line(1, 32), 65)), [3]int{}},
		"none":                {seals, of("keys", "\n"), [3]int{}},
		"no key":              {seals, of("key", line(1, 32)), [3]int{}},
		"a short one":         {seals, of("keys", line(1, 31)), [3]int{}},
		"a long one":          {seals, of("keys", line(1, 33)), [3]int{}},
		"a short second":      {seals, of("keys", line(1, 32)+line(1, 16)), [3]int{}},
		"no base64":           {seals, of("keys", line(1, 32)+"w0rd"), [3]int{}},
		"Ed25519":             {signs, of("key.pem", private(t, ed)), [3]int{0, 1}},
		"ECDSA, trusts": {signs, of("key.pem", private(t, ec), "trusted.pem", public(t, ed)+public(t, ec)),
			[3]int{0, 1, 2}},
		"RSA":               {signs, of("key.pem", private(t, old)), [3]int{}},
		"public alone":      {signs, of("key.pem", public(t, ed)), [3]int{}},
		"trust alone":       {signs, of("trusted.pem", public(t, ed)), [3]int{}},
		"trusts a private":  {signs, of("key.pem", private(t, ec), "trusted.pem", private(t, ed)), [3]int{}},
		"trusts no text":    {signs, of("key.pem", private(t, ec), "trusted.pem", "w0rd"), [3]int{}},
		"trusts RSA":        {signs, of("key.pem", private(t, ec), "trusted.pem", public(t, old)), [3]int{}},
		"no text":           {signs, of("key.pem", "w0rd"), [3]int{}},
		"a block of rubble": {signs, of("key.pem", strings.ReplaceAll(private(t, ed), "M", "A")), [3]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{Type: decide.TypeSealKeys, Data: test.data}
			if test.of.Field == signs.Field {
				secret.Type = decide.TypeSignKey
			}
			got := &nodev1.LoginResponse{}
			why := test.of.Read(secret, "r/u", got)
			n := [3]int{len(got.GetSealKeys()), min(1, len(got.GetSignKey())), len(got.GetSignTrusted())}
			if n != test.wants || (why == "") != (test.wants != [3]int{}) {
				t.Errorf("%v keys, %q", n, why)
			}
			if why != "" && (!strings.Contains(why, "kubectl create secret generic") || strings.Contains(why, "w0rd")) {
				t.Errorf("told %q", why)
			}
			for _, other := range []corev1.SecretType{corev1.SecretTypeOpaque, corev1.SecretTypeTLS, ""} {
				secret.Type = other
				got := &nodev1.LoginResponse{}
				if why := test.of.Read(secret, "r/u", got); len(got.GetSealKeys())+len(got.GetSignKey()) > 0 ||
					!strings.Contains(why, "has type") {
					t.Errorf("of type %q: %q", other, why)
				}
			}
		})
	}
}

// What is to be sealed or signed is neither without its keys, whatever became of the class. A class that has more gives
// what is wanted alone.
func TestNoKeys(t *testing.T) {
	ref := &v1alpha1.SecretRef{Namespace: "godwit-system", Name: "s"}
	seals := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef = ref })
	signs := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SignSecretRef = ref })
	both := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef, c.Spec.SignSecretRef = ref, ref })
	for name, test := range map[string]struct {
		wants decide.Keys
		class *v1alpha1.VMSnapshotClass
		says  string
		gives string
	}{
		"neither":                   {decide.Keys{}, nil, "", ""},
		"both":                      {decide.AllKeys, both, "", "sealSecretRef signSecretRef"},
		"more than it was made for": {decide.Keys{}, both, "", ""},
		"to sign alone":             {decide.Keys{Sign: true}, both, "", "signSecretRef"},
		"no class":                  {decide.Keys{Seal: true}, nil, "spec.sealSecretRef", ""},
		"no class that signs":       {decide.Keys{Sign: true}, nil, "spec.signSecretRef", ""},
		"it seals alone":            {decide.AllKeys, seals, "spec.signSecretRef", "sealSecretRef"},
		"it signs alone":            {decide.AllKeys, signs, "spec.sealSecretRef", "signSecretRef"},
	} {
		if got := decide.NoKeys(test.wants, "r/p", test.class); (got == "") != (test.says == "") ||
			!strings.Contains(got, test.says) {
			t.Errorf("%s: %q", name, got)
		}
		var gives []string
		if test.class != nil {
			for _, s := range decide.SecretsOf(test.class, test.wants) {
				gives = append(gives, s.Field)
			}
		}
		if got := strings.Join(gives, " "); got != test.gives {
			t.Errorf("%s: the class gives %q, want %q", name, got, test.gives)
		}
	}
}

// The record has a word of its own prefix alone, and a work order of its own operation and VM. What is held says by
// which orders it was made.
func TestWhoSaysThatItIsSealed(t *testing.T) {
	rec := &nodev1.Record{Uid: "u1", Prefix: "r/p", Sealed: true}
	for prefix, want := range map[string]bool{"r/p": true, "r/x": false, "": false} {
		keys, own := decide.KeysOfRecord(rec, prefix)
		if own != want || keys != (decide.Keys{Seal: want}) {
			t.Errorf("in %q: %v, %t", prefix, keys, own)
		}
	}
	if keys, own := decide.KeysOfRecord(&nodev1.Record{Sealed: true}, ""); own || keys != (decide.Keys{}) {
		t.Errorf("without a place: %v, %t", keys, own)
	}
	c := order("vmsnap-s1")
	c.Spec.Sealed = true
	for name, test := range map[string]struct {
		c              *v1alpha1.VMSnapshotContent
		operation, uid string
		want           bool
	}{
		"its own":       {&c, "s1", "u1", true},
		"another one's": {&c, "s2", "u1", false},
		"another VM's":  {&c, "s1", "u2", false},
		"no VM's":       {&c, "s1", "", false},
		"none":          {nil, "s1", "u1", false},
	} {
		if keys, ok := decide.KeysOfOrder(test.c, test.operation, test.uid); ok != test.want ||
			keys != (decide.Keys{Seal: test.want}) {
			t.Errorf("%s: %v, %t", name, keys, ok)
		}
	}
	ref := func(operation, repository string, given bool) *nodev1.SnapshotRef {
		return &nodev1.SnapshotRef{Operation: operation, Repository: repository, Given: given}
	}
	rec.Snapshots = []*nodev1.SnapshotRef{ref("s1", "r/x/u1", true), ref("s1", "r/x/u1", true), ref("s2", "r/y/u1", true),
		ref("s3", "r/x/u1", false)}
	owed := []*nodev1.Owed{{Snapshot: ref("s4", "r/x/u1", true), Hold: &nodev1.Hold{}},
		{Snapshot: ref("s5", "r/x/u1", true)}}
	if got := strings.Join(decide.OrderedIn("r/x/u1", rec, owed), " "); got != "s1 s4" {
		t.Errorf("orders %q", got)
	}
}
