// Subscribing: the handshake, starts and stops, and what ends a subscription.

package main

import (
	"fmt"
	"io"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc/codes"
)

func init() {
	single["handshake"] = handshake
	single["starts-stops"] = startsStops
	single["stop-refusals"] = stopRefusals
	single["offset-overflow"] = offsetOverflow
	single["offset-underflow"] = offsetUnderflow
	single["reverse"] = reverse
	single["delete-during-subscribe"] = deleteDuringSubscribe
	single["readonly-during-subscribe"] = readonlyDuringSubscribe
	single["pause-during-subscribe"] = pauseDuringSubscribe
	single["resume"] = resume
	single["resume-all"] = resumeAll
	single["auto-pause"] = autoPause
}

func handshake(r *rig) {
	stream := r.create("s")
	call, err := r.stub().Subscribe(r.ctx, &api.SubscribeRequest{Stream: stream})
	must(err, "subscribe")
	first, err := call.Recv()
	must(err, "the first message")
	check(first.Offset == 0 && len(first.Value) == 0 && first.Stream == "", "not empty: %v", first)
	r.publish(stream, "x")
	second, err := call.Recv()
	must(err, "the second message")
	check(string(second.Value) == "x" && second.Stream == stream, "%v", second)
	check(second.AckInbox == "" && second.CorrelationId == "", "what is not stored: %v", second)
	for what, request := range map[string]*api.SubscribeRequest{
		"stream":    {Stream: r.prefix + "no"},
		"partition": {Stream: stream, Partition: 1},
	} {
		call, err := r.stub().Subscribe(r.ctx, request)
		must(err, "subscribe")
		_, err = call.Recv()
		refused(err, codes.NotFound, what)
	}
	_, err = r.subscribe(r.prefix + "no")
	check(err != nil, "the client finds no such stream")
}

// Every start with every stop, on offsets 0 to 9.
func startsStops(r *rig) {
	stream := r.create("s")
	for number := range 10 {
		r.publish(stream, fmt.Sprint(number))
		time.Sleep(2 * time.Millisecond) // the records' times differ
	}
	every := r.readAll(stream)
	same(offsets(every), span(0, 9), "everything")
	at := func(offset int) time.Time { return every[offset].Timestamp() }
	starts := map[string]struct {
		option lift.SubscriptionOption
		first  int64
	}{
		"offset":    {lift.StartAtOffset(4), 4},
		"timestamp": {lift.StartAtTime(at(4)), 4},
		"between":   {lift.StartAtTime(at(4).Add(time.Microsecond)), 5},
		"earliest":  {lift.StartAtEarliestReceived(), 0},
		"latest":    {lift.StartAtLatestReceived(), 9},
	}
	for name, start := range starts {
		same(offsets(r.read(stream, start.option, lift.StopAtLatestReceived())), span(start.first, 9), name)
		same(offsets(r.read(stream, start.option, lift.StopAtOffset(9))), span(start.first, 9), name+", offset")
		same(offsets(r.read(stream, start.option, lift.StopAtTime(at(9)))), span(start.first, 9), name+", time")
		if start.first < 7 {
			same(offsets(r.read(stream, start.option, lift.StopAtOffset(7))), span(start.first, 7), name+", 7")
			same(offsets(r.read(stream, start.option, lift.StopAtTime(at(7)))), span(start.first, 7), name+", time of 7")
			before := lift.StopAtTime(at(7).Add(-time.Microsecond))
			same(offsets(r.read(stream, start.option, before)), span(start.first, 6), name+", before 7")
		}
		endless, err := r.subscribe(stream, start.option)
		must(err, name)
		for offset := start.first; offset <= 9; offset++ {
			check(endless.next().Offset() == offset, "%s, no stop", name)
		}
		endless.silent(name)
		endless.cancel()
	}
	fresh, err := r.subscribe(stream, lift.StartAtNewOnly())
	must(err, "new only")
	fresh.silent("new only")
	bounded, err := r.subscribe(stream, lift.StartAtNewOnly(), lift.StopAtOffset(11))
	must(err, "new only, offset")
	for range 3 {
		r.publish(stream, "new")
	}
	for offset := int64(10); offset <= 12; offset++ {
		check(fresh.next().Offset() == offset, "new only")
	}
	for offset := int64(10); offset <= 11; offset++ {
		check(bounded.next().Offset() == offset, "new only, offset")
	}
	check(bounded.end() == lift.ErrReadonlyPartition, "the stop is the end")
}

func stopRefusals(r *rig) {
	stream := r.create("s")
	code := func(request *api.SubscribeRequest, expected codes.Code, what string) {
		request.Stream = stream
		call, err := r.stub().Subscribe(r.ctx, request)
		must(err, what)
		for err == nil {
			_, err = call.Recv()
		}
		refused(err, expected, what)
	}
	code(&api.SubscribeRequest{StopPosition: api.StopPosition_STOP_LATEST}, codes.ResourceExhausted, "latest of an empty log")
	r.fill(stream, 3)
	code(&api.SubscribeRequest{StartPosition: 77}, codes.InvalidArgument, "an unknown start")
	code(&api.SubscribeRequest{StopPosition: 77}, codes.InvalidArgument, "an unknown stop")
	code(&api.SubscribeRequest{
		StartPosition: api.StartPosition_OFFSET, StartOffset: 2, StopPosition: api.StopPosition_STOP_OFFSET, StopOffset: 1,
	}, codes.InvalidArgument, "a stop before the start")
	code(&api.SubscribeRequest{Consumer: &api.Consumer{GroupId: "g"}}, codes.InvalidArgument, "a group without a member")
}

// An offset that does not exist yet: the next message that is committed, whatever its offset.
func offsetOverflow(r *rig) {
	empty := r.create("e")
	found, err := r.subscribe(empty, lift.StartAtOffset(100))
	must(err, "subscribe")
	check(r.publish(empty, "x").Offset() == 0, "publish")
	check(found.next().Offset() == 0, "of an empty log")
	stream := r.create("s")
	r.fill(stream, 10)
	found, err = r.subscribe(stream, lift.StartAtOffset(100))
	must(err, "subscribe")
	r.publish(stream, "x")
	check(found.next().Offset() == 10, "the next one")
}

func offsetUnderflow(r *rig) {
	stream := r.create("s")
	r.fill(stream, 3)
	found, err := r.subscribe(stream, lift.StartAtOffset(-5))
	must(err, "subscribe")
	check(found.next().Offset() == 0, "a negative offset is the oldest")
}

// The client has no option for it yet, so the stub is asked.
func reverse(r *rig) {
	stream := r.create("s")
	r.fill(stream, 10)
	call, err := r.stub().Subscribe(r.ctx, &api.SubscribeRequest{
		Stream: stream, StartPosition: api.StartPosition_LATEST, Reverse: true,
	})
	must(err, "subscribe")
	_, err = call.Recv()
	must(err, "the first message")
	for offset := int64(9); offset >= 0; offset-- {
		message, err := call.Recv()
		must(err, "a message")
		check(message.Offset == offset, "offset %d instead of %d", message.Offset, offset)
	}
	_, err = call.Recv()
	if err != io.EOF {
		refused(err, codes.ResourceExhausted, "the end")
	}
}

func deleteDuringSubscribe(r *rig) {
	stream := r.create("s")
	r.fill(stream, 1)
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	found.next()
	must(r.client.DeleteStream(r.ctx, stream), "delete")
	ended := found.end()
	check(ended == lift.ErrStreamDeleted, "ended with %v", ended)
}

func readonlyDuringSubscribe(r *rig) {
	stream := r.create("s")
	r.fill(stream, 3)
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	for offset := range int64(3) {
		check(found.next().Offset() == offset, "before")
	}
	must(r.client.SetStreamReadonly(r.ctx, stream), "read-only")
	ended := found.end()
	check(ended == lift.ErrReadonlyPartition, "ended with %v", ended)
	later, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe to what is read-only")
	for offset := range int64(3) {
		check(later.next().Offset() == offset, "after")
	}
	check(later.end() == lift.ErrReadonlyPartition, "its end")
	empty := r.create("e")
	must(r.client.SetStreamReadonly(r.ctx, empty), "read-only")
	nothing, err := r.subscribe(empty, lift.StartAtEarliestReceived())
	if err == nil {
		err = nothing.end()
	}
	check(err == lift.ErrReadonlyPartition, "an empty one: %v", err)
}

func pauseDuringSubscribe(r *rig) {
	stream := r.create("s")
	r.fill(stream, 1)
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	found.next()
	must(r.client.PauseStream(r.ctx, stream), "pause")
	must(r.client.PauseStream(r.ctx, stream), "pause again")
	ended := found.end()
	check(ended == lift.ErrPartitionPaused, "ended with %v", ended)
	for _, position := range []api.StartPosition{api.StartPosition_NEW_ONLY, api.StartPosition_EARLIEST} {
		call, err := r.stub().Subscribe(r.ctx, &api.SubscribeRequest{Stream: stream, StartPosition: position})
		must(err, "subscribe")
		for err == nil {
			_, err = call.Recv()
		}
		refused(err, codes.FailedPrecondition, "subscribe to what is paused")
	}
	check(r.client.PauseStream(r.ctx, r.prefix+"no") == lift.ErrNoSuchPartition, "no stream")
	check(r.client.PauseStream(r.ctx, stream, lift.PausePartitions(7)) == lift.ErrNoSuchPartition, "no partition")
}

func (r *rig) paused(stream string, partition int32) bool {
	told, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{Streams: []string{stream}})
	must(err, "metadata")
	return told.StreamMetadata[0].Partitions[partition].Paused
}

// A publish of the API resumes, and so does a subscriber that asks; plain NATS does not.
func resume(r *rig) {
	stream := r.create("s")
	r.fill(stream, 1)
	must(r.client.PauseStream(r.ctx, stream), "pause")
	check(r.paused(stream, 0), "metadata tells")
	must(r.nc.Publish(stream, []byte("lost")), "publish over NATS")
	must(r.nc.Flush(), "flush")
	check(r.publish(stream, "1").Offset() == 1, "a publish resumes, what NATS had is not stored")
	until(func() bool { return !r.paused(stream, 0) }, "not paused")
	must(r.client.PauseStream(r.ctx, stream), "pause")
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived(), lift.Resume())
	must(err, "subscribe and resume")
	check(found.next().Offset() == 0 && found.next().Offset() == 1, "what was there")
	must(r.client.PauseStream(r.ctx, stream), "pause")
	call := r.async()
	call.send("a", &api.PublishRequest{Stream: stream})
	call.receive(1)
	check(call.answers["a"].Ack.Offset == 2, "%v", call.answers["a"])
	must(r.client.DeleteStream(r.ctx, stream), "delete")
}

func resumeAll(r *rig) {
	stream := r.create("s", lift.Partitions(3))
	must(r.client.PauseStream(r.ctx, stream, lift.PausePartitions(0, 1)), "pause two")
	check(r.paused(stream, 0) && r.paused(stream, 1) && !r.paused(stream, 2), "two are paused")
	r.publish(stream, "x", lift.ToPartition(0))
	until(func() bool { return !r.paused(stream, 0) }, "the one that is published to goes on")
	check(r.paused(stream, 1), "the other one does not")
	must(r.client.PauseStream(r.ctx, stream, lift.ResumeAll()), "pause all")
	r.publish(stream, "x", lift.ToPartition(2))
	until(func() bool {
		return !r.paused(stream, 0) && !r.paused(stream, 1) && !r.paused(stream, 2)
	}, "all go on")
}

func autoPause(r *rig) {
	stream := r.create("s", lift.AutoPauseTime(500*time.Millisecond))
	r.fill(stream, 1)
	until(func() bool { return r.paused(stream, 0) }, "an idle stream is paused")
	check(r.publish(stream, "x").Offset() == 1, "a publish resumes")
	busy := r.create("b", lift.AutoPauseTime(500*time.Millisecond), lift.AutoPauseDisableIfSubscribers(true))
	found, err := r.subscribe(busy, lift.StartAtNewOnly())
	must(err, "subscribe")
	time.Sleep(2 * time.Second)
	check(!r.paused(busy, 0), "a stream with a subscriber is not paused")
	found.cancel()
	until(func() bool { return r.paused(busy, 0) }, "without one it is")
}
