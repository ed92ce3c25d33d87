package record

import (
	"context"

	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Get implements nodev1.RecordsService.
func (c *Client) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Get, req)
}

// List implements nodev1.RecordsService. Who asks for no parts gets them all: each record as it
// was when its part was read.
func (c *Client) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	if req.GetParts() {
		return call(ctx, c, nodev1.RecordsService.List, req)
	}
	all := &nodev1.ListResponse{}
	more := proto.CloneOf(req)
	for more.Parts = true; ; {
		part, err := call(ctx, c, nodev1.RecordsService.List, more)
		if err != nil {
			return nil, err
		}
		all.Records, all.Owes, all.Unread = append(all.Records, part.GetRecords()...), part.Owes, part.GetUnread()
		if more.After = part.GetNext(); more.After == "" {
			return all, nil
		}
	}
}

// Ensure implements nodev1.RecordsService.
func (c *Client) Ensure(ctx context.Context, req *nodev1.EnsureRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Ensure, req)
}

// Own implements nodev1.RecordsService.
func (c *Client) Own(ctx context.Context, req *nodev1.OwnRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Own, req)
}

// Open implements nodev1.RecordsService.
func (c *Client) Open(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Open, req)
}

// Advance implements nodev1.RecordsService.
func (c *Client) Advance(ctx context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Advance, req)
}

// Place implements nodev1.RecordsService.
func (c *Client) Place(ctx context.Context, req *nodev1.PlaceRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Place, req)
}

// Commit implements nodev1.RecordsService.
func (c *Client) Commit(ctx context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Commit, req)
}

// Finish implements nodev1.RecordsService.
func (c *Client) Finish(ctx context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Finish, req)
}

// Disown implements nodev1.RecordsService.
func (c *Client) Disown(ctx context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Disown, req)
}

// Remove implements nodev1.RecordsService.
func (c *Client) Remove(ctx context.Context, req *nodev1.RemoveRequest) (*nodev1.RemoveResponse, error) {
	return call(ctx, c, nodev1.RecordsService.Remove, req)
}

// Schedule implements nodev1.RecordsService.
func (c *Client) Schedule(ctx context.Context, req *nodev1.ScheduleRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Schedule, req)
}

// Delete implements nodev1.RecordsService.
func (c *Client) Delete(ctx context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Delete, req)
}

// Trim implements nodev1.RecordsService.
func (c *Client) Trim(ctx context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Trim, req)
}

// Pin implements nodev1.RecordsService.
func (c *Client) Pin(ctx context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Pin, req)
}

// Name implements nodev1.RecordsService.
func (c *Client) Name(ctx context.Context, req *nodev1.NameRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Name, req)
}

// Operation implements nodev1.RecordsService.
func (c *Client) Operation(ctx context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
	return call(ctx, c, nodev1.RecordsService.Operation, req)
}

// Owed implements nodev1.RecordsService, as List does.
func (c *Client) Owed(ctx context.Context, req *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	if req.GetParts() {
		return call(ctx, c, nodev1.RecordsService.Owed, req)
	}
	all := &nodev1.OwedResponse{}
	more := proto.CloneOf(req)
	for more.Parts = true; ; {
		part, err := call(ctx, c, nodev1.RecordsService.Owed, more)
		if err != nil {
			return nil, err
		}
		all.Owed = append(all.Owed, part.GetOwed()...)
		if more.After = part.GetNext(); more.After == "" {
			return all, nil
		}
	}
}

// Clear implements nodev1.RecordsService.
func (c *Client) Clear(ctx context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	return call(ctx, c, nodev1.RecordsService.Clear, req)
}

// Retry implements nodev1.RecordsService.
func (c *Client) Retry(ctx context.Context, req *nodev1.RetryRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Retry, req)
}

// Reclaim implements nodev1.RecordsService.
func (c *Client) Reclaim(ctx context.Context, req *nodev1.ReclaimRequest) (*nodev1.Record, error) {
	return call(ctx, c, nodev1.RecordsService.Reclaim, req)
}
