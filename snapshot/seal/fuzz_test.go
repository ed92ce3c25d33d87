package seal

import (
	"bytes"
	"testing"
)

// What others have written where the locks of a key belong opens nothing, and is an error.
func FuzzLocked(f *testing.F) {
	mine := Secret(bytes.Repeat([]byte{1}, keySize))
	locks := Locks{Keys: []Secret{mine}}
	key := FromSecret([32]byte(bytes.Repeat([]byte{2}, keySize))) // the same in each process of a fuzzer
	good, err := locks.Lock(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[0].Kind, good[0].ID, good[0].Data)
	f.Add(kindAge, "x", []byte("age-encryption.org/v1\n-> X25519 abc\ndef\n--- ghi\n"))
	f.Fuzz(func(t *testing.T, kind, id string, data []byte) {
		got, err := locks.Unlock([]Locked{{Kind: kind, ID: id, Data: data}})
		if err == nil && got.Secret() != key.Secret() {
			t.Fatal("another key was unlocked")
		}
	})
}
