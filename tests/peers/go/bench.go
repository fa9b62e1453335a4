// Measurements, for bench/measures/liftbridge.py: each prints one JSON object.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
)

const (
	benchWindow  = 1000
	benchSettles = 10 * time.Second
)

// bench runs one measurement: liftpeer -addrs A -nats N bench MODE STREAM SIZE COUNT.
func bench(r *rig, arguments []string) {
	mode, stream := arguments[0], arguments[1]
	size, err := strconv.Atoi(arguments[2])
	must(err, "size")
	count, err := strconv.Atoi(arguments[3])
	must(err, "count")
	found := map[string]any{"tool": "go-liftbridge v2.4.0"}
	switch mode {
	case "create":
		partitions := int32(count)
		must(r.client.CreateStream(r.ctx, stream, stream, lift.Partitions(partitions)), "create")
	case "publish":
		found["msgs_s"] = r.benchPublish(stream, size, count, 1)
	case "publish8":
		found["msgs_s"] = r.benchPublish(stream, size, count, 8)
	case "unary":
		r.benchUnary(stream, size, count, found)
	case "subscribe":
		found["msgs_s"] = r.benchSubscribe(stream, count)
	case "busy":
		r.benchBusy(stream, size, count, found)
	case "group":
		found["msgs_s"] = r.benchGroup(stream, count)
	case "first":
		r.benchFirst(stream, count, found)
	default:
		check(false, "no measurement %s", mode)
	}
	told, err := json.Marshal(found)
	must(err, "json")
	fmt.Fprintln(os.Stdout, string(told))
}

func percentiles(found map[string]any, taken []time.Duration) {
	sort.Slice(taken, func(i, j int) bool { return taken[i] < taken[j] })
	at := func(part float64) float64 {
		return float64(taken[int(float64(len(taken)-1)*part)].Microseconds())
	}
	found["p50_us"], found["p99_us"], found["max_us"] = at(0.5), at(0.99), at(1)
}

// benchPublish publishes with PublishAsync, acknowledged by all, a window of messages at a time.
func (r *rig) benchPublish(stream string, size, count int, partitions int32) float64 {
	value := make([]byte, size)
	window := make(chan struct{}, benchWindow)
	failed := make(chan error, count)
	var due sync.WaitGroup
	began := time.Now()
	for number := range count {
		window <- struct{}{}
		due.Add(1)
		err := r.client.PublishAsync(r.ctx, stream, value, func(_ *lift.Ack, err error) {
			if err != nil {
				failed <- err
			}
			<-window
			due.Done()
		}, lift.AckPolicyAll(), lift.ToPartition(int32(number)%partitions))
		must(err, "publish")
	}
	due.Wait()
	took := time.Since(began)
	check(len(failed) == 0, "%d messages were not acknowledged", len(failed))
	return float64(count) / took.Seconds()
}

// benchUnary makes one call of Publish after the other.
func (r *rig) benchUnary(stream string, size, count int, found map[string]any) {
	request := &api.PublishRequest{Stream: stream, Value: make([]byte, size), AckPolicy: api.AckPolicy_ALL}
	taken := make([]time.Duration, 0, count)
	for number := range count + count/20 {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		began := time.Now()
		told, err := r.stub().Publish(ctx, request)
		took := time.Since(began)
		cancel()
		must(err, "publish")
		check(told.Ack != nil, "no acknowledgement")
		if number >= count/20 {
			taken = append(taken, took)
		}
	}
	percentiles(found, taken)
}

// benchSubscribe reads a partition from the earliest offset.
func (r *rig) benchSubscribe(stream string, count int) float64 {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	got, ended := 0, make(chan error, 2)
	began := time.Now()
	err := r.client.Subscribe(ctx, stream, func(_ *lift.Message, err error) {
		if got++; err != nil || got == count {
			ended <- err
		}
	}, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	must(<-ended, "the subscription")
	return float64(count) / time.Since(began).Seconds()
}

// benchBusy measures acknowledgements while another connection reads the stream again and again.
func (r *rig) benchBusy(stream string, size, count int, found map[string]any) {
	reader, err := lift.Connect(r.addrs)
	must(err, "connect")
	defer reader.Close()
	other := *r
	other.client = reader
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		rounds := 0
		for {
			select {
			case <-stop:
				done <- rounds
				return
			default:
				other.benchSubscribe(stream, count*10)
				rounds++
			}
		}
	}()
	r.benchUnary(stream, size, count, found)
	close(stop)
	found["rounds"] = <-done
}

// benchGroup lets four members read eight partitions from the start, once each has its share.
//
// A member whose epoch is old rests for two seconds, so the clock starts when all have settled: until
// then no message is handled, and the client's windows hold the servers back.
func (r *rig) benchGroup(stream string, count int) float64 {
	quick := lift.FetchAssignmentsInterval(func(time.Duration) time.Duration { return 100 * time.Millisecond })
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var mu sync.Mutex
	seen, all, settled := map[int64]struct{}{}, make(chan struct{}), make(chan struct{})
	handle := func(message *lift.Message, err error) {
		if err != nil {
			return
		}
		<-settled
		key := int64(message.Partition())<<40 | message.Offset()
		mu.Lock()
		defer mu.Unlock()
		before := len(seen)
		seen[key] = struct{}{}
		if len(seen) == count && before < count {
			close(all)
		}
	}
	members := []*lift.Consumer{}
	for range 4 {
		member, err := r.client.CreateConsumer(r.prefix, lift.AutoOffsetEarliest(), lift.AutoCheckpoint(0), quick)
		must(err, "a member")
		must(member.Subscribe(ctx, []string{stream}, handle), "join")
		members = append(members, member)
	}
	time.Sleep(benchSettles)
	began := time.Now()
	close(settled)
	<-all
	took := time.Since(began)
	for _, member := range members {
		leave(member)
	}
	return float64(count) / took.Seconds()
}

// benchFirst measures the first message of a subscription at offsets below the given one.
func (r *rig) benchFirst(stream string, below int, found map[string]any) {
	taken := []time.Duration{}
	for number := range 20 {
		offset := int64(below) * int64(number) / 20
		began := time.Now()
		subscription, err := r.subscribe(stream, lift.StartAtOffset(offset))
		must(err, "subscribe")
		check(subscription.next().Offset() == offset, "another offset")
		taken = append(taken, time.Since(began))
		subscription.cancel()
	}
	percentiles(found, taken)
}
