// Publishes with each option of nats.go's js.Publish, and prints what the library made of each
// answer, one JSON object a line. Arguments: the NATS URL, the stream, its subject.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type outcome struct {
	Option  string `json:"option"`
	Stream  string `json:"stream,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`
	Double  bool   `json:"duplicate,omitempty"`
	Code    int    `json:"code,omitempty"`
	ErrCode int    `json:"err_code,omitempty"`
	Error   string `json:"error,omitempty"`
}

func main() {
	url, stream, subject := os.Args[1], os.Args[2], os.Args[3]
	nc, err := nats.Connect(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	tries := []struct {
		name    string
		options []jetstream.PublishOpt
	}{
		{"none", nil},
		{"WithExpectStream", []jetstream.PublishOpt{jetstream.WithExpectStream(stream)}},
		{"WithExpectStream other", []jetstream.PublishOpt{jetstream.WithExpectStream("other")}},
		{"WithExpectLastSequence", []jetstream.PublishOpt{jetstream.WithExpectLastSequence(2)}},
		{"WithExpectLastSequence missed", []jetstream.PublishOpt{jetstream.WithExpectLastSequence(1)}},
		{"WithMsgID", []jetstream.PublishOpt{jetstream.WithMsgID("a")}},
		{"WithMsgID again", []jetstream.PublishOpt{jetstream.WithMsgID("a")}},
		{"WithExpectLastSequencePerSubject", []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(4)}},
		{"WithExpectLastSequenceForSubject", []jetstream.PublishOpt{jetstream.WithExpectLastSequenceForSubject(5, subject)}},
		{"WithExpectLastMsgID", []jetstream.PublishOpt{jetstream.WithExpectLastMsgID("a")}},
		{"WithMsgTTL", []jetstream.PublishOpt{jetstream.WithMsgTTL(5 * time.Second)}},
		{"none at the end", nil},
	}
	printer := json.NewEncoder(os.Stdout)
	for _, try := range tries {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		found := outcome{Option: try.name}
		ack, err := js.Publish(ctx, subject, []byte("x"), try.options...)
		cancel()
		var refused *jetstream.APIError
		switch {
		case err == nil:
			found.Stream, found.Seq, found.Double = ack.Stream, ack.Sequence, ack.Duplicate
		case errors.As(err, &refused):
			found.Code, found.ErrCode, found.Error = refused.Code, int(refused.ErrorCode), refused.Description
		default:
			found.Error = err.Error()
		}
		if err := printer.Encode(found); err != nil {
			os.Exit(1)
		}
	}
}
