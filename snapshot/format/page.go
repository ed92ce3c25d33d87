package format

// IsZero reports whether a page has no content.
func IsZero(page []byte) bool { return [PageSize]byte(page) == [PageSize]byte{} }
