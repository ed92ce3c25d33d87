package logtimes

import (
	"io"
	"os"
	"time"
)

// Part is a stretch of a log that has one mark.
type Part struct {
	Mark
	Known bool  // the time is
	At    int64 // where it begins in its file
	Data  []byte
}

// block is how much of a file is read at once.
const block = 64 << 10

// markPause is waited for the time of what was just written: it is written after the text.
const markPause = 10 * time.Millisecond

// Reader reads a file of a log in its parts, from where the file is read.
type Reader struct {
	f     *os.File
	path  string
	marks Marks
	begun bool // the marks were read
	at    int64
	buf   []byte
	left  []byte // of buf, what is not answered yet
}

// NewReader takes a file of a log. path is that of the log before any rotation.
func NewReader(f *os.File, path string) (*Reader, error) {
	at, err := f.Seek(0, io.SeekCurrent)
	return &Reader{f: f, path: path, at: at, buf: make([]byte, block)}, err
}

// Next answers the next part, whose data are the reader's. At the end of the file it is io.EOF.
func (r *Reader) Next() (Part, error) {
	if len(r.left) == 0 {
		if err := r.fill(); err != nil {
			return Part{}, err
		}
	}
	p := Part{At: r.at}
	p.Mark, p.Known = r.marks.At(r.at)
	n := len(r.left)
	if i := r.marks.after(r.at); i < len(r.marks) {
		n = int(min(int64(n), r.marks[i].Offset-r.at))
	}
	p.Data, r.left = r.left[:n], r.left[n:]
	r.at += int64(n)
	return p, nil
}

// fill reads the next block. Marks are read after what they are of.
func (r *Reader) fill() error {
	n, err := r.f.Read(r.buf)
	if err != nil {
		return err
	}
	r.left = r.buf[:n]
	last := n < len(r.buf)
	if !r.begun || last {
		r.marks, err = Read(r.f, r.path)
		r.begun = true
	}
	if err == nil && last && (len(r.marks) == 0 || r.marks[len(r.marks)-1].Offset < r.at) {
		time.Sleep(markPause)
		r.marks, err = Read(r.f, r.path)
	}
	return err
}
