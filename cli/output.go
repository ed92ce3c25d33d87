package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/visible"
)

// printJSON writes a message as one JSON document with all its fields.
func printJSON(w io.Writer, m proto.Message) error {
	data, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(data))
	return err
}

// table writes rows under a header.
func table(w io.Writer, header string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(strings.Fields(header), "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = visible.Line(cell)
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// mib writes bytes in MiB, and nothing for none.
func mib(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fMiB", float64(n)/(1<<20))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// ownerName is the node or the digest that holds the VM, short.
func ownerName(o *nodev1.Owner) string {
	if d := o.GetDigest(); d != "" {
		return short(d)
	}
	return dash(o.GetNode())
}

// short keeps 12 digits of a digest: enough to recognise, not enough to act on.
func short(digest string) string {
	if len(digest) > 19 {
		return digest[:19]
	}
	return digest
}

// lower turns PHASE_SUCCEEDED into succeeded.
func lower(enum, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(enum, prefix), "_", " "))
}
