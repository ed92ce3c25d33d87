// Package format is the encoding of a snapshot's pages: frames of packed pages, packs
// of frames, and the index that says which page lies where. docs/dev/protocols/snapshot-format.md
// describes it for other readers. It does no IO.
package format

import (
	"fmt"
	"regexp"
	"sort"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
)

// Version of the index that this build writes. It reads this one only.
const Version = version.Index

// Sizes of the format. A reader refuses what exceeds the bounds before it allocates.
const (
	PageSize      = 4096
	FramePages    = 16 // at most, per frame
	MaxFrame      = FramePages * PageSize
	PackSize      = 16 << 20 // a writer closes a pack when it reaches this
	PackFrames    = 2048     // or this: one pack is one unit of parallel work for a reader
	MaxPack       = 64 << 20
	MaxIndex      = 256 << 20 // decoded
	MaxSpaces     = 64
	MaxSpace      = 1 << 46 // bytes
	MaxPacks      = 1 << 14
	maxSpaceName  = 16
	headerSize    = 32
	spaceSize     = 32
	packSize      = 40
	frameSize     = 48
	runSize       = 16
	indexMagic    = "GODWITIX"
	indexPageBits = 12
)

// Index maps every stored page of every address space to its place. A page that no
// run covers is zero.
type Index struct {
	Spaces []Space
	Packs  []Pack
	Frames []Frame // by pack, then by offset
}

// Space is one address space: ram0, disk0, disk1...
type Space struct {
	Name string
	Size uint64 // bytes; the last page of a disk may be partial, it is stored padded
	Runs []Run  // by page, not overlapping
}

// Content is how many bytes of pages are stored of it, each as often as it is there.
func (s *Space) Content() (bytes uint64) {
	for _, r := range s.Runs {
		bytes += uint64(r.Count) * PageSize
	}
	return bytes
}

// Run says that Count pages from Page on are the pages of a frame from Slot on.
type Run struct {
	Page  uint64
	Frame uint32 // in Index.Frames
	Slot  uint8
	Count uint8
}

// Pack is one blob of frames.
type Pack struct {
	SHA256 [32]byte
	Size   uint64
}

// Frame is up to FramePages pages, encoded on their own.
type Frame struct {
	Pack   uint32 // in Index.Packs
	Offset uint32 // in the pack
	Stored uint32 // bytes in the pack
	Pages  uint8
	Codec  Codec
	BLAKE3 [32]byte // of the stored bytes
}

// Space returns the address space of that name, or nil.
func (x *Index) Space(name string) *Space {
	for i := range x.Spaces {
		if x.Spaces[i].Name == name {
			return &x.Spaces[i]
		}
	}
	return nil
}

var spaceName = regexp.MustCompile(`^(ram|disk)(0|[1-9][0-9]?)$`)

// CheckSpaceName refuses what is not ramN or diskN.
func CheckSpaceName(name string) error {
	if !spaceName.MatchString(name) {
		return fmt.Errorf("address space %q: not ramN or diskN: %w", name, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Validate refuses an index in which anything points outside of what it names.
func (x *Index) Validate() error {
	if len(x.Spaces) > MaxSpaces || len(x.Packs) > MaxPacks {
		return invalid("%d spaces, %d packs: more than %d, %d", len(x.Spaces), len(x.Packs), MaxSpaces, MaxPacks)
	}
	for i, p := range x.Packs {
		if p.Size == 0 || p.Size > MaxPack {
			return invalid("pack %d: size %d", i, p.Size)
		}
	}
	if err := x.validateFrames(); err != nil {
		return err
	}
	names := make(map[string]bool, len(x.Spaces))
	for i := range x.Spaces {
		s := &x.Spaces[i]
		if names[s.Name] {
			return invalid("space %s: twice", s.Name)
		}
		names[s.Name] = true
		if err := x.validateSpace(s); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) validateFrames() error {
	var pack uint32
	var end uint64
	for i, f := range x.Frames {
		switch {
		case int(f.Pack) >= len(x.Packs):
			return invalid("frame %d: pack %d of %d", i, f.Pack, len(x.Packs))
		case f.Pages == 0 || f.Pages > FramePages:
			return invalid("frame %d: %d pages", i, f.Pages)
		case f.Stored == 0 || f.Stored > uint32(f.Pages)*PageSize+f.Codec.overhead():
			return invalid("frame %d: %d stored bytes for %d pages", i, f.Stored, f.Pages)
		case f.Codec.plain() == Raw && f.Stored != uint32(f.Pages)*PageSize+f.Codec.overhead():
			return invalid("frame %d: %d raw bytes for %d pages", i, f.Stored, f.Pages)
		case !f.Codec.known():
			return fmt.Errorf("index: frame %d: codec %d: %w", i, f.Codec, errdefs.ErrNotImplemented)
		case f.Pack < pack || f.Pack == pack && uint64(f.Offset) < end:
			return invalid("frame %d: not in order", i)
		}
		pack, end = f.Pack, uint64(f.Offset)+uint64(f.Stored)
		if end > x.Packs[pack].Size {
			return invalid("frame %d: ends at %d of %d bytes of pack %d", i, end, x.Packs[pack].Size, pack)
		}
	}
	return nil
}

func (x *Index) validateSpace(s *Space) error {
	if err := CheckSpaceName(s.Name); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if s.Size == 0 || s.Size > MaxSpace {
		return invalid("space %s: size %d", s.Name, s.Size)
	}
	pages := (s.Size + PageSize - 1) / PageSize
	var next uint64
	for i, r := range s.Runs {
		switch {
		case int(r.Frame) >= len(x.Frames):
			return invalid("space %s: run %d: frame %d of %d", s.Name, i, r.Frame, len(x.Frames))
		case r.Count == 0 || int(r.Slot)+int(r.Count) > int(x.Frames[r.Frame].Pages):
			return invalid("space %s: run %d: slots %d+%d of %d", s.Name, i, r.Slot, r.Count, x.Frames[r.Frame].Pages)
		case r.Page < next:
			return invalid("space %s: run %d: not in order", s.Name, i)
		case r.Page >= pages || uint64(r.Count) > pages-r.Page:
			return invalid("space %s: run %d: pages %d+%d of %d", s.Name, i, r.Page, r.Count, pages)
		}
		next = r.Page + uint64(r.Count)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("index: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// PackFrames is the range of a pack's frames.
func (x *Index) PackFrames(pack int) (first, end int) {
	f := x.Frames
	first = sort.Search(len(f), func(i int) bool { return int(f[i].Pack) >= pack })
	end = sort.Search(len(f), func(i int) bool { return int(f[i].Pack) > pack })
	return first, end
}
