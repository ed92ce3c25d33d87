package stdio

import (
	"context"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
)

const (
	readWait     = 10 * time.Second       // how long a Read may wait
	silenceBound = time.Second            // how long output must be silent to count as ended; see atEnd
	retryPause   = 200 * time.Millisecond // after a call that failed
	chunk        = 64 << 10               // of stdin
	readMax      = 1 << 20                // of output
)

// Guest is what a pump asks of the agent. All three calls name offsets: to repeat one is safe.
type Guest interface {
	Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error)
	Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error)
	CloseStdin(ctx context.Context, r *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error)
}

// Pump carries the stdio of one process while the guest can be asked. It is stopped before a
// capture and started again after it.
type Pump struct {
	id           string
	streams      *Streams
	process      context.Context // ends with the process
	processEnded context.CancelFunc
	exit         *agentv1.WaitResponse // says where its output ends; set before process ends
	drained      sync.WaitGroup        // of the outputs

	mu      sync.Mutex
	offsets client.Offsets
	flow    context.Context // of what runs
	cancel  context.CancelFunc
	running sync.WaitGroup
	input   chan []byte             // from stdin; one reader for the life of the process
	done    map[agentv1.Stream]bool // all that the ended process wrote is out, or never will be

	finished  map[agentv1.Stream]bool // nothing comes any more
	guestGone bool                    // DrainGuest was called: no Start has an effect
}

// NewPump makes a pump for the process that the guest knows as id. from says how far its streams
// have come. Nothing flows before Start.
func NewPump(id string, st *Streams, from client.Offsets) *Pump {
	p := &Pump{id: id, streams: st, offsets: from, done: map[agentv1.Stream]bool{}, finished: map[agentv1.Stream]bool{}}
	p.process, p.processEnded = context.WithCancel(context.Background())
	p.drained.Add(len(p.outputs()))
	if st.stdin != nil && !from.StdinDone {
		p.input = make(chan []byte)
		go p.readStdin()
	}
	return p
}

// Start lets the streams flow through agent until Stop.
func (p *Pump) Start(ctx context.Context, agent Guest) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow, p.cancel = ctx, cancel
	if p.guestGone {
		cancel()
		return
	}
	for _, s := range p.outputs() {
		p.running.Go(func() { p.readOutput(ctx, agent, s) })
	}
	if p.input != nil || len(p.offsets.Pending) > 0 {
		p.running.Go(func() { p.writeStdin(ctx, agent) })
	}
}

// Stop returns when nothing moves any more; what was under way counts or does not, as
// the offsets tell.
func (p *Pump) Stop() client.Offsets {
	p.mu.Lock()
	cancel := p.cancel
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets
}

// StopState is Stop, and tells which streams there are. It leaves Terminal and Closed to the caller.
func (p *Pump) StopState() State {
	at := p.Stop()
	stdin, stdout, stderr := p.streams.Present()
	return State{Stdin: stdin, Stdout: stdout, Stderr: stderr, Offsets: at}
}

// Offsets tells how far the streams have come.
func (p *Pump) Offsets() client.Offsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets
}

// End says that the process has ended, and where its output ends. WaitDrained waits for the
// outputs to come to there.
func (p *Pump) End(exit *agentv1.WaitResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended() {
		p.exit = exit
		p.processEnded()
	}
}

// Release stops the pump for good and closes the streams.
func (p *Pump) Release() {
	p.Stop()
	p.processEnded()
	p.streams.Close()
}

// CloseStdin ends stdin after what was written so far.
func (p *Pump) CloseStdin() { p.streams.CloseStdin() }

// LoggerPID is the process of the logging program; 0: none.
func (p *Pump) LoggerPID() int { return p.streams.loggerPID }

// Close closes the streams, and leaves the pump to notice it.
func (p *Pump) Close() { p.streams.Close() }

func (p *Pump) ended() bool { return p.process.Err() != nil }

func (p *Pump) load(offset *uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *offset
}

func (p *Pump) save(offset *uint64, at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*offset = at
}

// HasOutput reports whether the process has an output.
func (p *Pump) HasOutput() bool { return p.streams.stdout != nil || p.streams.stderr != nil }
