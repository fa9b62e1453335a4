// peer: the measuring client of the NATS side, on the official Go client, so that JetStream is
// shown at its best. It prints one JSON object. Used against JetStream, and against Headwater where
// Headwater answers as JetStream does (PubAck on the reply subject).
//
//	peer create  -stream S                  a file stream, one replica, atomic batches allowed
//	peer publish -stream S -window W        acknowledged, at most W unanswered per publisher
//	peer latency -stream S                  acknowledged, one outstanding
//	peer consume -stream S -messages N      ordered consumer from the first message
//	peer first-ack -stream S -messages N    N new streams: from the call to create to the first ack
//	peer probe   -stream S                  one record at a time for ever; a line "SENT ACKED" each
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

type options struct {
	url, stream, subject string
	messages, size       int
	publishers, window   int
	replicas             int
	timeout              time.Duration
}

type result map[string]any

// refused counts what the server, or time, did not acknowledge.
var refused atomic.Int64

func main() {
	commands := map[string]func(context.Context, options) (result, error){
		"create": create, "publish": publish, "latency": latency, "consume": consume,
		"first-ack": firstAck, "probe": probe,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer create|publish|latency|consume|first-ack|probe [flags]")
		os.Exit(2)
	}
	o := parse(os.Args[2:])
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	found, err := commands[os.Args[1]](ctx, o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func parse(arguments []string) options {
	var o options
	f := flag.NewFlagSet("peer", flag.ExitOnError)
	f.StringVar(&o.url, "url", "nats://127.0.0.1:4222", "NATS server")
	f.StringVar(&o.stream, "stream", "bench", "stream name")
	f.StringVar(&o.subject, "subject", "", "subject (default: the stream's name)")
	f.IntVar(&o.messages, "messages", 100_000, "messages in total")
	f.IntVar(&o.size, "size", 100, "payload bytes")
	f.IntVar(&o.publishers, "publishers", 1, "publishers, each with a connection of its own")
	f.IntVar(&o.window, "window", 1000, "unanswered messages allowed per publisher")
	f.IntVar(&o.replicas, "replicas", 1, "replicas of a stream that is created")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up after this long")
	_ = f.Parse(arguments)
	if o.subject == "" {
		o.subject = o.stream
	}
	return o
}

func connect(o options) (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect(o.url, nats.MaxReconnects(0))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(o.window),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) {
			refused.Add(1)
		}))
	return connection, js, err
}

// payload is random, so that nothing on the way compresses it.
func payload(size int) []byte {
	value := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(value)
	return value
}

func rate(o options, messages int, took time.Duration) result {
	return result{
		"messages": messages, "size_bytes": o.size, "publishers": o.publishers, "window": o.window,
		"seconds": took.Seconds(), "records_per_s": float64(messages) / took.Seconds(),
	}
}

func create(ctx context.Context, o options) (result, error) {
	connection, js, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	_, err = js.CreateStream(ctx, config(o, o.stream, o.subject))
	return result{"stream": o.stream}, err
}

func config(o options, stream, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: stream, Subjects: []string{subject}, Storage: jetstream.FileStorage,
		Replicas: o.replicas, AllowAtomicPublish: true,
	}
}

func publish(ctx context.Context, o options) (result, error) {
	each := o.messages / o.publishers
	sources := make([]jetstream.JetStream, o.publishers)
	for i := range sources {
		connection, js, err := connect(o)
		if err != nil {
			return nil, err
		}
		defer connection.Close()
		sources[i] = js
	}
	var group sync.WaitGroup
	failures := make([]error, o.publishers)
	start := time.Now()
	for i, js := range sources {
		group.Add(1)
		go func() {
			defer group.Done()
			failures[i] = publishMany(ctx, js, o, each)
		}()
	}
	group.Wait()
	took := time.Since(start)
	if refused.Load() > 0 {
		failures = append(failures, fmt.Errorf("%d messages were not acknowledged", refused.Load()))
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	return rate(o, each*o.publishers, took), nil
}

// publishMany keeps the client's own window full; PublishAsync blocks while it is.
func publishMany(ctx context.Context, js jetstream.JetStream, o options, count int) error {
	value := payload(o.size)
	for range count {
		_, err := js.PublishAsync(o.subject, value)
		for errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			_, err = js.PublishAsync(o.subject, value)
		}
		if err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// latencyLevels is LEVELS of bench/stats.py: the shares by which a distribution is kept.
var latencyLevels = []float64{
	0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1,
}

func latency(ctx context.Context, o options) (result, error) {
	connection, js, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	value := payload(o.size)
	warm := o.messages / 20
	times := make([]float64, 0, o.messages)
	start := time.Now()
	for i := range o.messages + warm {
		if i == warm {
			start = time.Now()
		}
		sent := time.Now()
		if _, err := js.Publish(ctx, o.subject, value); err != nil {
			return nil, err
		}
		if i >= warm {
			times = append(times, float64(time.Since(sent).Nanoseconds())/1e3)
		}
	}
	found := rate(o, o.messages, time.Since(start))
	slices.Sort(times)
	at := func(share float64) float64 { return times[int(float64(len(times)-1)*share)] }
	found["p50_us"], found["p99_us"], found["max_us"] = at(0.5), at(0.99), at(1)
	levels := map[string]float64{}
	for _, share := range latencyLevels {
		levels[strconv.FormatFloat(share, 'f', -1, 64)] = at(share)
	}
	found["levels_us"] = levels
	return found, nil
}

func consume(ctx context.Context, o options) (result, error) {
	connection, js, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	consumer, err := js.OrderedConsumer(ctx, o.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return nil, err
	}
	count, all := 0, make(chan struct{})
	start := time.Now()
	reading, err := consumer.Consume(func(jetstream.Msg) {
		if count++; count == o.messages {
			close(all)
		}
	}, jetstream.PullMaxMessages(10_000))
	if err != nil {
		return nil, err
	}
	defer reading.Stop()
	select {
	case <-all:
	case <-ctx.Done():
		return nil, fmt.Errorf("only some of %d messages came: %w", o.messages, ctx.Err())
	}
	return rate(o, o.messages, time.Since(start)), nil
}

func firstAck(ctx context.Context, o options) (result, error) {
	connection, js, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	value := payload(o.size)
	times := make([]float64, 0, o.messages)
	for i := range o.messages {
		name := fmt.Sprintf("%s-%d", o.stream, i)
		start := time.Now()
		if _, err := js.CreateStream(ctx, config(o, name, name)); err != nil {
			return nil, err
		}
		if _, err := js.Publish(ctx, name, value); err != nil {
			return nil, err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1e6)
		if err := js.DeleteStream(ctx, name); err != nil {
			return nil, err
		}
	}
	return result{"first_ack_ms": times}, nil
}

// probe ends when it is killed. A publish that is not answered is tried again after probeTimeout.
func probe(_ context.Context, o options) (result, error) {
	const probeTimeout, pause = 500 * time.Millisecond, 5 * time.Millisecond
	connection, err := nats.Connect(o.url, nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	value := payload(o.size)
	for {
		sent, err := monotonic()
		if err != nil {
			return nil, err
		}
		once, cancel := context.WithTimeout(context.Background(), probeTimeout)
		_, failure := js.Publish(once, o.subject, value)
		cancel()
		acked, err := monotonic()
		if err != nil {
			return nil, err
		}
		if failure != nil {
			fmt.Fprintln(os.Stderr, failure)
		} else {
			fmt.Println(sent, acked)
		}
		time.Sleep(pause)
	}
}

// monotonic is the clock that all processes of the machine share.
func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}
