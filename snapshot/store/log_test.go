package store

import (
	"io"
	"log"
)

func nopLog() *log.Logger { return log.New(io.Discard, "", 0) }
