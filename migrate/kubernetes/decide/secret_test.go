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
	secrets := decide.SecretsOf(both, true)
	if len(secrets) != 2 || len(decide.SecretsOf(both, false)) != 0 {
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

// A VM whose record has it that it is sealed or signed is neither without its keys, whatever became of the class. In
// another place that says nothing.
func TestNoKeys(t *testing.T) {
	ref := &v1alpha1.SecretRef{Namespace: "godwit-system", Name: "s"}
	seals := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef = ref })
	signs := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SignSecretRef = ref })
	both := classOf("gold", func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef, c.Spec.SignSecretRef = ref, ref })
	at := func(prefix string, sealed, signed bool) *nodev1.Record {
		return &nodev1.Record{Prefix: prefix, Sealed: sealed, Signed: signed}
	}
	for name, test := range map[string]struct {
		rec   *nodev1.Record
		class *v1alpha1.VMSnapshotClass
		says  string
	}{
		"no record":                 {nil, nil, ""},
		"neither":                   {at("r/p", false, false), nil, ""},
		"both":                      {at("r/p", true, true), both, ""},
		"more than it was made for": {at("r/p", false, false), both, ""},
		"no class":                  {at("r/p", true, false), nil, "spec.sealSecretRef"},
		"no class that signs":       {at("r/p", false, true), nil, "spec.signSecretRef"},
		"it seals alone":            {at("r/p", true, true), seals, "spec.signSecretRef"},
		"it signs alone":            {at("r/p", true, true), signs, "spec.sealSecretRef"},
		"another place":             {at("r/x", true, true), nil, ""},
		"no place":                  {at("", true, true), nil, ""},
	} {
		if got := decide.NoKeys(test.rec, "r/p", test.class); (got == "") != (test.says == "") ||
			!strings.Contains(got, test.says) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
