package dashboard

import (
	"bytes"
	"fmt"
	"net/http"
	"time"
)

// tick is how often a page that is looked at is brought up to date.
const tick = 2 * time.Second

// sendTimeout bounds how long a browser may leave an answer unread.
const sendTimeout = 10 * time.Second

// events sends the live part of the page each tick until the browser goes or godwitd ends.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d pages are kept up to date already: close some", maxStreams),
			http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for {
		var part bytes.Buffer
		if err := p.pages.ExecuteTemplate(&part, "live.html", p.view(r)); err != nil {
			return
		}
		_ = out.SetWriteDeadline(time.Now().Add(sendTimeout)) // a recorder of tests has none
		if _, err := w.Write(message(part.Bytes())); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-timer.C:
		}
	}
}

// message is an event of a stream, as the HTML standard has it (server-sent events): each line of its text after
// "data: ", then an empty line.
func message(text []byte) []byte {
	out := bytes.NewBufferString("event: live\n")
	for line := range bytes.Lines(bytes.ReplaceAll(text, []byte("\r"), nil)) {
		out.WriteString("data: ")
		out.Write(bytes.TrimSuffix(line, []byte("\n")))
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
	return out.Bytes()
}
