// Scenarios of Liftbridge's API, each told by the public Go client, by plain gRPC stubs where the
// client hides a status code, and by plain NATS.
//
//	usage: liftpeer -addrs HOST:PORT[,HOST:PORT...] -nats URL SCENARIO
//	       liftpeer list
//	       liftpeer -addrs … -nats … bench MODE STREAM SIZE COUNT
//	       liftpeer -addrs … -ca FILE -token FILE guarded STREAM HIDDEN
//
// A scenario prints "ok" and ends with 0, or prints why it failed and ends with 1. A scenario of a
// cluster asks whoever runs it to kill or start a broker: it prints "!kill ID" or "!start ID" and
// waits for a line on its standard input.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const patience = 60 * time.Second

// rig is what a scenario works with.
type rig struct {
	ctx    context.Context
	client lift.Client
	stubs  map[string]api.APIClient // by address
	addrs  []string
	nc     *nats.Conn
	prefix string // of the names of this run's streams, subjects and groups
	stdin  *bufio.Reader
}

var single = map[string]func(*rig){}
var clustered = map[string]func(*rig){}

func main() {
	addrs := flag.String("addrs", "", "addresses of the brokers")
	natsURL := flag.String("nats", "", "address of NATS")
	caFile := flag.String("ca", "", "guarded: the authority of the brokers' certificates")
	tokenFile := flag.String("token", "", "guarded: the file of a token")
	flag.Parse()
	name := flag.Arg(0)
	if name == "list" {
		list()
		return
	}
	if name == "guarded" {
		end(guarded(strings.Split(*addrs, ","), *caFile, *tokenFile, flag.Args()[1:]), true)
		return
	}
	scenario := single[name]
	if name == "bench" {
		scenario = func(r *rig) { bench(r, flag.Args()[1:]) }
	}
	if scenario == nil {
		scenario = clustered[name]
	}
	if scenario == nil {
		fmt.Println("no scenario", name)
		os.Exit(2)
	}
	end(run(scenario, strings.Split(*addrs, ","), *natsURL), name != "bench")
}

func end(err error, says bool) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	if says {
		fmt.Println("ok")
	}
}

func list() {
	for kind, found := range map[string]map[string]func(*rig){"single": single, "cluster": clustered} {
		names := make([]string, 0, len(found))
		for name := range found {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Println(kind, name)
		}
	}
}

func run(scenario func(*rig), addrs []string, natsURL string) (err error) {
	defer func() { err = told(recover(), err) }()
	// The context of Connect also bounds the publish streams, so the client gets one without an end.
	client, err := lift.Connect(addrs, lift.AckWaitTime(20*time.Second))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer client.Close()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	r := &rig{
		ctx: ctx, client: client, addrs: addrs, nc: nc, prefix: "x" + strings.ToLower(nuid.Next()[14:]),
		stubs: map[string]api.APIClient{}, stdin: bufio.NewReader(os.Stdin),
	}
	for _, addr := range addrs {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		r.stubs[addr] = api.NewAPIClient(conn)
	}
	scenario(r)
	return nil
}

// failure ends a scenario.
type failure string

// told turns a recovered failure into an error.
func told(found any, err error) error {
	switch found := found.(type) {
	case nil:
		return err
	case failure:
		return fmt.Errorf("%s", string(found))
	default:
		panic(found)
	}
}

func check(holds bool, format string, values ...any) {
	if !holds {
		panic(failure(fmt.Sprintf(format, values...)))
	}
}

func must(err error, what string) {
	check(err == nil, "%s: %v", what, err)
}

func refused(err error, code codes.Code, what string) {
	check(status.Code(err) == code, "%s: %v instead of %v (%v)", what, status.Code(err), code, err)
}

func until(condition func() bool, what string) {
	deadline := time.Now().Add(patience)
	for !condition() {
		check(time.Now().Before(deadline), "not within %v: %s", patience, what)
		time.Sleep(20 * time.Millisecond)
	}
}

// ask lets whoever runs this program do something to a broker.
func (r *rig) ask(what, broker string) {
	fmt.Printf("!%s %s\n", what, broker)
	_, err := r.stdin.ReadString('\n')
	must(err, "the answer to "+what)
}

func (r *rig) stub() api.APIClient { return r.stubs[r.addrs[0]] }

// create makes a stream on a subject of the same name, and returns the name.
func (r *rig) create(suffix string, options ...lift.StreamOption) string {
	name := r.prefix + suffix
	must(r.client.CreateStream(r.ctx, name, name, options...), "create "+name)
	return name
}

func (r *rig) publish(stream string, value string, options ...lift.MessageOption) *lift.Ack {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	ack, err := r.client.Publish(ctx, stream, []byte(value), options...)
	must(err, "publish to "+stream)
	return ack
}

func (r *rig) fill(stream string, count int, options ...lift.MessageOption) {
	for number := range count {
		ack := r.publish(stream, fmt.Sprint(number), options...)
		check(ack.Offset() == int64(number), "offset %d instead of %d", ack.Offset(), number)
	}
}

// subscription collects what a subscriber gets.
type subscription struct {
	messages chan *lift.Message
	ended    chan error
	cancel   context.CancelFunc
}

func (r *rig) subscribe(stream string, options ...lift.SubscriptionOption) (*subscription, error) {
	ctx, cancel := context.WithCancel(r.ctx)
	found := &subscription{make(chan *lift.Message, 1<<20), make(chan error, 1), cancel}
	err := r.client.Subscribe(ctx, stream, func(message *lift.Message, err error) {
		if err != nil {
			found.ended <- err
			return
		}
		found.messages <- message
	}, options...)
	if err != nil {
		cancel()
	}
	return found, err
}

func (s *subscription) next() *lift.Message {
	select {
	case message := <-s.messages:
		return message
	case err := <-s.ended:
		s.ended <- err
		select { // what came before the end
		case message := <-s.messages:
			return message
		default:
			check(false, "the subscription ended: %v", err)
		}
	case <-time.After(patience):
		check(false, "no message within %v", patience)
	}
	return nil
}

func (s *subscription) end() error {
	select {
	case err := <-s.ended:
		return err
	case <-time.After(patience):
		check(false, "the subscription did not end within %v", patience)
	}
	return nil
}

func (s *subscription) silent(what string) {
	select {
	case message := <-s.messages:
		check(false, "%s: got offset %d", what, message.Offset())
	case err := <-s.ended:
		check(false, "%s: ended with %v", what, err)
	case <-time.After(300 * time.Millisecond):
	}
}

// read returns what a subscription gets until it ends as one does that has reached its stop.
func (r *rig) read(stream string, options ...lift.SubscriptionOption) []*lift.Message {
	messages, ended := r.readOnce(stream, options...)
	check(ended == lift.ErrReadonlyPartition, "ended with %v", ended)
	return messages
}

// readOnce does the same, and returns how the subscription ended.
func (r *rig) readOnce(stream string, options ...lift.SubscriptionOption) ([]*lift.Message, error) {
	found, err := r.subscribe(stream, options...)
	must(err, "subscribe to "+stream)
	defer found.cancel()
	ended := found.end()
	messages := make([]*lift.Message, 0, len(found.messages))
	for len(found.messages) > 0 {
		messages = append(messages, <-found.messages)
	}
	return messages, ended
}

func (r *rig) readAll(stream string, options ...lift.SubscriptionOption) []*lift.Message {
	options = append(options, lift.StartAtEarliestReceived(), lift.StopAtLatestReceived())
	return r.read(stream, options...)
}

func values(messages []*lift.Message) []string {
	found := make([]string, 0, len(messages))
	for _, message := range messages {
		found = append(found, string(message.Value()))
	}
	return found
}

func offsets(messages []*lift.Message) []int64 {
	found := make([]int64, 0, len(messages))
	for _, message := range messages {
		found = append(found, message.Offset())
	}
	return found
}

func same[T comparable](found, expected []T, what string) {
	equal := len(found) == len(expected)
	for place := 0; equal && place < len(found); place++ {
		equal = found[place] == expected[place]
	}
	check(equal, "%s: %v instead of %v", what, found, expected)
}

func span(from, to int64) []int64 {
	found := []int64{}
	for one := from; one <= to; one++ {
		found = append(found, one)
	}
	return found
}
