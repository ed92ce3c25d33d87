package screen

import (
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"

	"godwit.dev/godwit/internal/visible"
)

// Column is one of a table.
type Column struct {
	Title string
	Wide  bool // shown with -o wide only
	Keep  bool // never cut: a name or a digest that is cut finds nothing
	Right bool // numbers
	Spare bool // left out where the table does not fit otherwise
	Least int  // how narrow it may be cut; 0: some characters
}

// Columns are those of a line of titles, none of them special.
func Columns(titles ...string) []Column {
	all := make([]Column, len(titles))
	for i, t := range titles {
		all[i].Title = t
	}
	return all
}

// Table is rows under titles. A row has a cell for each column.
type Table struct {
	Columns []Column
	Rows    [][]string
}

// Bounds of what stands in a line.
const (
	gap     = 2        // spaces between columns
	least   = 6        // of a column that is cut
	cutMark = "\u2026" // at the end of a cell that was cut
)

// Write draws the table as wide as the terminal under w. A wide table has all its columns, whole.
func (t Table) Write(w io.Writer, wide bool) error {
	width := Width(w)
	if wide {
		width = 0
	}
	_, err := io.WriteString(visible.Under(w), t.text(width, wide, Colours(w)))
	return err
}

// text is the table in lines of at most width columns, as far as its columns can be cut. 0 is no bound.
func (t Table) text(width int, wide, colours bool) string {
	columns, rows := t.shown(wide)
	widths, fits := fit(columns, rows, width)
	for !fits && t.leaveOut() {
		columns, rows = t.shown(wide)
		widths, fits = fit(columns, rows, width)
	}
	var b strings.Builder
	for i, row := range rows {
		line(&b, columns, widths, row, colours && i > 0)
	}
	return b.String()
}

// leaveOut hides the last spare column, if there is one.
func (t *Table) leaveOut() bool {
	for i := len(t.Columns) - 1; i >= 0; i-- {
		if c := t.Columns[i]; c.Spare && !c.Wide {
			t.Columns = slices.Clone(t.Columns)
			t.Columns[i].Wide = true
			return true
		}
	}
	return false
}

// shown leaves wide columns away unless they are asked for. The first row is the titles; cells are one line each.
func (t Table) shown(wide bool) (columns []Column, rows [][]string) {
	rows = make([][]string, len(t.Rows)+1)
	for i, c := range t.Columns {
		if c.Wide && !wide {
			continue
		}
		columns = append(columns, c)
		rows[0] = append(rows[0], c.Title)
		for r, row := range t.Rows {
			cell := ""
			if i < len(row) {
				cell = visible.Line(row[i])
			}
			rows[r+1] = append(rows[r+1], cell)
		}
	}
	return columns, rows
}

// fit answers the widths of the columns. While the table is too wide, the widest column that may be cut gets
// narrower. A terminal that is too narrow even so gets long lines.
func fit(columns []Column, rows [][]string, width int) (widths []int, fits bool) {
	widths = make([]int, len(columns))
	total := gap * (len(columns) - 1)
	for i := range columns {
		for _, row := range rows {
			widths[i] = max(widths[i], runewidth.StringWidth(row[i]))
		}
		total += widths[i]
	}
	for width > 0 && total > width {
		widest := -1
		for i, c := range columns {
			floor := max(least, c.Least, runewidth.StringWidth(c.Title))
			if !c.Keep && widths[i] > floor && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return widths, false
		}
		widths[widest]--
		total--
	}
	return widths, true
}

// line ends after its last cell that is not empty.
func line(b *strings.Builder, columns []Column, widths []int, row []string, colours bool) {
	var text strings.Builder
	for i, cell := range row {
		cell = runewidth.Truncate(cell, widths[i], cutMark)
		space := strings.Repeat(" ", max(0, widths[i]-runewidth.StringWidth(cell)))
		if colours {
			cell = paint(columns[i].Title, cell)
		}
		if columns[i].Right {
			cell, space = space+cell, ""
		}
		text.WriteString(cell + space)
		if i < len(row)-1 {
			text.WriteString(strings.Repeat(" ", gap))
		}
	}
	b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
}
