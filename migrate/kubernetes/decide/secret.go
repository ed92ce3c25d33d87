package decide

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The types of Secrets with keys, and what they have. A Secret of another type is never sent to a node.
const (
	TypeSealKeys corev1.SecretType = "godwit.dev/seal-keys"
	TypeSignKey  corev1.SecretType = "godwit.dev/sign-key"
	DataKeys                       = "keys"        // 32 bytes in base64, a line each: the first seals, each opens
	DataKey                        = "key.pem"     // PKCS #8
	DataTrusted                    = "trusted.pem" // public keys of before
)

// Secret is one that a class names.
type Secret struct {
	Field  string
	Ref    v1alpha1.SecretRef
	remedy string
	// read adds what the Secret has to an answer; why is what is wrong with it. It quotes nothing of the Secret.
	read func(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) (why string)
}

// The commands that make Secrets, without names.
const (
	makeLogin = "kubectl create secret docker-registry"
	makeSeal  = "kubectl create secret generic --type=" + string(TypeSealKeys) + " --from-file=" + DataKeys + "=FILE"
	makeSign  = "kubectl create secret generic --type=" + string(TypeSignKey) + " --from-file=" + DataKey + "=FILE"
)

// SecretsOf are those that a class names: that of the login, and those of the keys if they are wanted.
func SecretsOf(c *v1alpha1.VMSnapshotClass, keys bool) (all []Secret) {
	if ref := c.Spec.PullSecretRef; ref != nil {
		all = append(all, Secret{"pullSecretRef", *ref, makeLogin, readLogin})
	}
	if ref := c.Spec.SealSecretRef; ref != nil && keys {
		all = append(all, Secret{"sealSecretRef", *ref, makeSeal, readSeal})
	}
	if ref := c.Spec.SignSecretRef; ref != nil && keys {
		all = append(all, Secret{"signSecretRef", *ref, makeSign, readSign})
	}
	return all
}

func sameSecrets(a, b *v1alpha1.VMSnapshotClass) bool {
	of, others := SecretsOf(a, true), SecretsOf(b, true)
	if len(of) != len(others) {
		return false
	}
	for i := range of {
		if of[i].Field != others[i].Field || of[i].Ref != others[i].Ref {
			return false
		}
	}
	return true
}

// NoSecret says why the Secret of a class gives nothing, and what mends it. It quotes nothing of the Secret.
func NoSecret(c *v1alpha1.VMSnapshotClass, s Secret, why string) string {
	return fmt.Sprintf("VMSnapshotClass %s has spec.%s: Secret %s/%s %s", c.Name, s.Field, s.Ref.Namespace, s.Ref.Name,
		why)
}

// Missing is said of a Secret that there is not.
func (s Secret) Missing() string {
	return "does not exist. An administrator makes it: " + s.remedy
}

// SecretForbidden is said of a Secret that may not be read.
const SecretForbidden = "may not be read by godwit-operator. An administrator makes it in the operator's namespace, " +
	"or a Role with get for that one Secret"

// Read adds what a Secret has for a repository to an answer; why is what is wrong with it.
func (s Secret) Read(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) (why string) {
	return s.read(secret, repository, to)
}

func readLogin(secret *corev1.Secret, repository string, to *nodev1.LoginResponse) string {
	login, why := LoginOf(secret, repository)
	if why == "" {
		to.Username, to.Password = login.GetUsername(), login.GetPassword()
		to.IdentityToken, to.RegistryToken = login.GetIdentityToken(), login.GetRegistryToken()
	}
	return why
}

func readSeal(secret *corev1.Secret, _ string, to *nodev1.LoginResponse) string {
	if why := otherType(secret, TypeSealKeys, makeSeal); why != "" {
		return why
	}
	keys, err := seal.Parse(string(secret.Data[DataKeys]))
	if err != nil {
		return "has a key " + DataKeys + " that is not 1 to 64 lines with 32 bytes in base64 each: an administrator makes " +
			"it again, by " + makeSeal
	}
	to.SealKeys = keys
	return ""
}

func readSign(secret *corev1.Secret, _ string, to *nodev1.LoginResponse) string {
	if why := otherType(secret, TypeSignKey, makeSign); why != "" {
		return why
	}
	key, trusted, err := sign.Parse(secret.Data[DataKey], secret.Data[DataTrusted])
	if err != nil {
		return "has a key " + DataKey + " that is no private key (PKCS #8 in PEM, ECDSA or Ed25519), or a key " +
			DataTrusted + " with more than public ones: an administrator makes it again, by " + makeSign
	}
	to.SignKey, to.SignTrusted = key, trusted
	return ""
}

func otherType(secret *corev1.Secret, want corev1.SecretType, remedy string) string {
	if secret.Type == want {
		return ""
	}
	return fmt.Sprintf("has type %.60q and not %s: an administrator makes it again, by %s", secret.Type, want, remedy)
}

// NoKeys says why nothing is made or read in a place: the record has it that snapshots there are sealed or signed, and
// the class, if there is one, has no Secret for that. Empty: nothing stands against it.
func NoKeys(rec *nodev1.Record, prefix string, class *v1alpha1.VMSnapshotClass) string {
	if prefix == "" || rec.GetPrefix() != prefix {
		return ""
	}
	for _, of := range []struct {
		field string
		needs bool
		has   bool
	}{
		{"sealSecretRef", rec.GetSealed(), class != nil && class.Spec.SealSecretRef != nil},
		{"signSecretRef", rec.GetSigned(), class != nil && class.Spec.SignSecretRef != nil},
	} {
		if of.needs && !of.has {
			return fmt.Sprintf("its class had spec.%s, and no VMSnapshotClass with spec.repository %s, and that field, is "+
				"open to its namespace: an administrator makes it again", of.field, prefix)
		}
	}
	return ""
}
