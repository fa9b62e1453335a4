// Publishing: envelopes, acknowledgement policies, deadlines, errors of single messages.

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func init() {
	single["envelope-ack"] = envelopeAck
	single["bad-envelope"] = badEnvelope
	single["ack-policies"] = ackPolicies
	single["publish-deadline"] = publishDeadline
	single["publish-async"] = publishAsync
	single["publish-readonly"] = publishReadonly
	single["optimistic-concurrency"] = optimisticConcurrency
	single["half-close"] = halfClose
	single["publish-to-subject"] = publishToSubject
	single["too-large"] = tooLarge
	single["many-messages"] = manyMessages
}

func parseEvent(value []byte) *api.ActivityStreamEvent {
	event := &api.ActivityStreamEvent{}
	must(proto.Unmarshal(value, event), "an event")
	return event
}

func eventStream(event *api.ActivityStreamEvent) string {
	switch event.Op {
	case api.ActivityStreamOp_CREATE_STREAM:
		return event.CreateStreamOp.GetStream()
	case api.ActivityStreamOp_DELETE_STREAM:
		return event.DeleteStreamOp.GetStream()
	case api.ActivityStreamOp_PAUSE_STREAM:
		return event.PauseStreamOp.GetStream()
	case api.ActivityStreamOp_SET_STREAM_READONLY:
		return event.SetStreamReadonlyOp.GetStream()
	}
	return ""
}

// Two streams on one subject: one envelope, two acknowledgements.
func envelopeAck(r *rig) {
	subject := r.prefix + "s"
	for _, suffix := range []string{"a", "b"} {
		must(r.client.CreateStream(r.ctx, subject, r.prefix+suffix), "create")
	}
	inbox := r.nc.NewRespInbox()
	acks, err := r.nc.SubscribeSync(inbox)
	must(err, "subscribe to the inbox")
	must(r.nc.Flush(), "flush")
	must(r.nc.Publish(subject, lift.NewMessage([]byte("v"), lift.Key([]byte("k")), lift.AckInbox(inbox),
		lift.CorrelationID("c"), lift.Header("h", []byte("1")), lift.AckPolicyAll())), "publish")
	streams := map[string]bool{}
	for range 2 {
		told, err := acks.NextMsg(patience)
		must(err, "an acknowledgement")
		ack, err := lift.UnmarshalAck(told.Data)
		must(err, "an acknowledgement")
		check(ack.Offset() == 0 && ack.CorrelationID() == "c", "%+v", ack)
		check(ack.AckInbox() == inbox && ack.MessageSubject() == subject, "%+v", ack)
		streams[ack.Stream()] = true
	}
	check(len(streams) == 2, "an acknowledgement of each stream: %v", streams)
	message := r.readAll(r.prefix + "a")[0]
	check(string(message.Key()) == "k" && string(message.Value()) == "v", "%+v", message)
	check(string(message.Headers()["h"]) == "1", "headers %v", message.Headers())
}

// What cannot be an envelope is a message all the same: the whole payload is its value.
func badEnvelope(r *rig) {
	stream := r.create("s")
	magic := []byte{0xB9, 0x0E, 0x43, 0xB4}
	good, err := proto.Marshal(&api.Message{Value: []byte("inside")})
	must(err, "a message")
	sum := make([]byte, 4)
	binary.BigEndian.PutUint32(sum, crc32.Checksum(good, crc32.MakeTable(crc32.Castagnoli)))
	wrong := []byte{sum[0] ^ 1, sum[1], sum[2], sum[3]}
	join := func(parts ...[]byte) []byte {
		found := []byte{}
		for _, part := range parts {
			found = append(found, part...)
		}
		return found
	}
	raw := [][]byte{
		magic,
		join(magic, []byte("garbage!")),
		join(magic, []byte{0, 8, 0, 0}, []byte{0xff, 0xff}),
		join(magic, []byte{0, 255, 0, 0}),
		join(magic, []byte{1, 8, 0, 0}, good),
		join(magic, []byte{0, 8, 0, 1}, good),
		join(magic, []byte{0, 12, 1, 0}, wrong, good),
		join(magic, []byte{0, 8, 1, 0}, good),
	}
	for _, one := range raw {
		must(r.nc.Publish(stream, one), "publish")
	}
	must(r.nc.Publish(stream, join(magic, []byte{0, 12, 1, 0}, sum, good)), "publish")
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	for _, one := range raw {
		check(string(found.next().Value()) == string(one), "stored as it came: %x", one)
	}
	check(string(found.next().Value()) == "inside", "an envelope with a checksum")
}

func ackPolicies(r *rig) {
	stream := r.create("s")
	ack := r.publish(stream, "0", lift.AckPolicyLeader(), lift.CorrelationID("mine"))
	check(ack.Offset() == 0 && ack.CorrelationID() == "mine", "%+v", ack)
	check(ack.Stream() == stream && ack.PartitionSubject() == stream, "%+v", ack)
	check(!ack.CommitTimestamp().Before(ack.ReceptionTimestamp()), "%+v", ack)
	check(r.publish(stream, "1", lift.AckPolicyAll()).Offset() == 1, "ALL")
	none, err := r.client.Publish(r.ctx, stream, []byte("2"), lift.AckPolicyNone())
	must(err, "NONE")
	check(none == nil, "NONE gets no acknowledgement")
	check(r.publish(stream, "3").Offset() == 3, "LEADER is the default")
	message := r.readAll(stream)[0]
	check(message.Timestamp().After(time.Now().Add(-time.Hour)), "time %v", message.Timestamp())
}

// Publish without a deadline: Liftbridge answers at once without an acknowledgement. We always wait.
func publishDeadline(r *rig) {
	stream := r.create("s")
	request := &api.PublishRequest{Stream: stream, Value: []byte("x")}
	_, err := r.stub().Publish(context.Background(), request)
	must(err, "without a deadline")
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	until(func() bool {
		told, err := r.stub().Publish(ctx, request)
		must(err, "with a deadline")
		return told.Ack != nil && told.Ack.Offset >= 1
	}, "an acknowledgement")
	for what, wrong := range map[string]struct {
		request *api.PublishRequest
		code    codes.Code
	}{
		"no name":   {&api.PublishRequest{}, codes.InvalidArgument},
		"stream":    {&api.PublishRequest{Stream: r.prefix + "no"}, codes.NotFound},
		"partition": {&api.PublishRequest{Stream: stream, Partition: 1}, codes.NotFound},
	} {
		_, err := r.stub().Publish(ctx, wrong.request)
		refused(err, wrong.code, what)
	}
}

type asyncCall struct {
	stream  api.API_PublishAsyncClient
	answers map[string]*api.PublishResponse
}

func (r *rig) async() *asyncCall {
	stream, err := r.stub().PublishAsync(r.ctx)
	must(err, "PublishAsync")
	return &asyncCall{stream, map[string]*api.PublishResponse{}}
}

func (c *asyncCall) send(id string, request *api.PublishRequest) {
	request.CorrelationId = id
	must(c.stream.Send(request), "send")
}

func (c *asyncCall) receive(count int) {
	for range count {
		told, err := c.stream.Recv()
		must(err, "an answer")
		c.answers[told.CorrelationId] = told
	}
}

func (c *asyncCall) failed(id string, code api.PublishAsyncError_Code) {
	told := c.answers[id]
	check(told != nil && told.AsyncError != nil, "%s: no error", id)
	check(told.AsyncError.Code == code, "%s: %v", id, told.AsyncError)
	check(told.Ack != nil && told.Ack.CorrelationId == "", "%s: old clients read the empty ack", id)
}

func publishAsync(r *rig) {
	stream := r.create("s")
	call := r.async()
	call.send("good", &api.PublishRequest{Stream: stream})
	call.send("no stream", &api.PublishRequest{Stream: r.prefix + "no"})
	call.send("no name", &api.PublishRequest{})
	call.send("no partition", &api.PublishRequest{Stream: stream, Partition: 9})
	call.send("silent", &api.PublishRequest{Stream: stream, AckPolicy: api.AckPolicy_NONE})
	call.send("behind", &api.PublishRequest{Stream: stream, AckPolicy: api.AckPolicy_ALL})
	call.receive(5)
	check(call.answers["good"].Ack.Offset == 0 && call.answers["good"].AsyncError == nil, "good")
	check(call.answers["behind"].Ack.Offset == 2, "behind: %v", call.answers["behind"])
	check(call.answers["silent"] == nil, "NONE has no answer")
	for _, id := range []string{"no stream", "no name", "no partition"} {
		call.failed(id, api.PublishAsyncError_NOT_FOUND)
	}
}

func publishReadonly(r *rig) {
	stream := r.create("s")
	r.publish(stream, "x")
	must(r.client.SetStreamReadonly(r.ctx, stream), "read-only")
	must(r.client.SetStreamReadonly(r.ctx, stream), "read-only again")
	_, err := r.client.Publish(r.ctx, stream, []byte("x"))
	check(err == lift.ErrReadonlyPartition, "publish: %v", err)
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	_, err = r.stub().Publish(ctx, &api.PublishRequest{Stream: stream})
	refused(err, codes.FailedPrecondition, "the unary call")
	call := r.async()
	call.send("a", &api.PublishRequest{Stream: stream})
	call.receive(1)
	call.failed("a", api.PublishAsyncError_READONLY)
	must(r.nc.Publish(stream, []byte("dropped")), "publish over NATS")
	must(r.nc.Flush(), "flush")
	check(len(r.readAll(stream)) == 1, "nothing was stored")
	must(r.client.SetStreamReadonly(r.ctx, stream, lift.Readonly(false)), "read and write")
	check(r.publish(stream, "y").Offset() == 1, "and back")
	check(r.client.SetStreamReadonly(r.ctx, r.prefix+"no") == lift.ErrNoSuchPartition, "no stream")
	err = r.client.SetStreamReadonly(r.ctx, stream, lift.ReadonlyPartitions(7))
	check(err == lift.ErrNoSuchPartition, "no partition")
}

func optimisticConcurrency(r *rig) {
	stream := r.create("s", lift.OptimisticConcurrencyControl(true))
	check(r.publish(stream, "0", lift.ExpectedOffset(0)).Offset() == 0, "the right one")
	_, err := r.client.Publish(r.ctx, stream, []byte("x"), lift.ExpectedOffset(0))
	check(err != nil && err != lift.ErrAckTimeout, "the wrong one: %v", err)
	check(r.publish(stream, "1").Offset() == 1, "-1 is any, and the client's default")
	call := r.async()
	call.send("next", &api.PublishRequest{Stream: stream, ExpectedOffset: 2})
	call.send("wrong", &api.PublishRequest{Stream: stream, ExpectedOffset: 2})
	call.send("none", &api.PublishRequest{Stream: stream, ExpectedOffset: -1, AckPolicy: api.AckPolicy_NONE})
	call.receive(3)
	check(call.answers["next"].Ack.Offset == 2, "next: %v", call.answers["next"])
	call.failed("wrong", api.PublishAsyncError_INCORRECT_OFFSET)
	call.failed("none", api.PublishAsyncError_BAD_REQUEST)
	ignoring := r.create("t")
	check(r.publish(ignoring, "x", lift.ExpectedOffset(9)).Offset() == 0, "other streams ignore it")
}

// After the half-close the answers that are due still come, and then the call ends in order.
func halfClose(r *rig) {
	stream := r.create("s")
	call := r.async()
	for number := range 500 {
		call.send(fmt.Sprint(number), &api.PublishRequest{Stream: stream, Value: []byte("x")})
	}
	must(call.stream.CloseSend(), "half-close")
	call.receive(500)
	_, err := call.stream.Recv()
	check(err == io.EOF, "the end: %v", err)
	empty := r.async()
	must(empty.stream.CloseSend(), "half-close")
	_, err = empty.stream.Recv()
	check(err == io.EOF, "the end of a call without messages: %v", err)
}

func publishToSubject(r *rig) {
	subject := r.prefix + "s"
	for _, suffix := range []string{"a", "b"} {
		must(r.client.CreateStream(r.ctx, subject, r.prefix+suffix), "create")
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	ack, err := r.client.PublishToSubject(ctx, subject, []byte("x"))
	must(err, "publish")
	check(ack.Offset() == 0 && ack.MessageSubject() == subject, "%+v", ack)
	for _, suffix := range []string{"a", "b"} {
		found, err := r.subscribe(r.prefix+suffix, lift.StartAtEarliestReceived())
		must(err, "subscribe")
		check(string(found.next().Value()) == "x", "each stream has it")
	}
	short, done := context.WithTimeout(r.ctx, 500*time.Millisecond)
	defer done()
	_, err = r.client.PublishToSubject(short, r.prefix+"nobody", []byte("x"))
	check(err == lift.ErrAckTimeout, "no stream listens: %v", err)
	_, err = r.stub().PublishToSubject(context.Background(), &api.PublishToSubjectRequest{Subject: subject})
	must(err, "without a deadline")
}

func tooLarge(r *rig) {
	stream := r.create("s")
	large := strings.Repeat("x", 100<<20)
	call := r.async()
	call.send("before", &api.PublishRequest{Stream: stream})
	call.receive(1)
	// Larger than one message of gRPC may be here: the call ends. A little larger than a record may
	// be: an answer, and the call goes on.
	call.send("large", &api.PublishRequest{Stream: stream, Value: []byte(large[:9<<20])})
	call.send("behind", &api.PublishRequest{Stream: stream})
	call.receive(2)
	call.failed("large", api.PublishAsyncError_BAD_REQUEST)
	check(call.answers["behind"].Ack.Offset == 1, "the stream is not affected")
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	_, err := r.stub().Publish(ctx, &api.PublishRequest{Stream: stream, Value: []byte(large[:9<<20])})
	refused(err, codes.InvalidArgument, "the unary call")
	_, err = r.stub().Publish(ctx, &api.PublishRequest{Stream: stream, Value: []byte(large)})
	check(err != nil, "a hundred MiB are refused")
	check(r.publish(stream, "x").Offset() == 2, "other calls are not affected")
}

func manyMessages(r *rig) {
	stream, count := r.create("s"), 20_000
	acked := make(chan error, count)
	for number := range count {
		must(r.client.PublishAsync(r.ctx, stream, fmt.Appendf(nil, "%06d", number), func(_ *lift.Ack, err error) {
			acked <- err
		}), "publish")
	}
	for range count {
		must(<-acked, "an acknowledgement")
	}
	for number, message := range r.readAll(stream) {
		check(message.Offset() == int64(number), "offset %d", message.Offset())
		check(string(message.Value()) == fmt.Sprintf("%06d", number), "value %s", message.Value())
	}
}
