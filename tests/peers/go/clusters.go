// Scenarios of three brokers, some of which are killed on the way.

package main

import (
	"context"
	"fmt"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc/codes"
)

func init() {
	clustered["follower-read"] = followerRead
	clustered["not-leader"] = notLeader
	clustered["any-broker"] = anyBroker
	clustered["leader-kill"] = leaderKill
	clustered["isr"] = isr
	clustered["two-leader-changes"] = twoLeaderChanges
	clustered["cursor-failover"] = cursorFailover
	clustered["coordinator-loss"] = coordinatorLoss
}

// place is what the brokers that answer say of partition 0 of a stream, and where they listen.
func (r *rig) place(stream string) (*api.PartitionMetadata, map[string]string) {
	for _, addr := range r.addrs {
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		told, err := r.stubs[addr].FetchMetadata(ctx, &api.FetchMetadataRequest{Streams: []string{stream}})
		cancel()
		if err != nil {
			continue
		}
		addrs := map[string]string{}
		for _, one := range told.Brokers {
			addrs[one.Id] = fmt.Sprintf("%s:%d", one.Host, one.Port)
		}
		partition := told.StreamMetadata[0].Partitions[0]
		if partition != nil && addrs[partition.Leader] != "" {
			return partition, addrs
		}
	}
	return nil, nil
}

func (r *rig) leader(stream string) (id, addr string) {
	until(func() bool {
		partition, addrs := r.place(stream)
		if partition != nil {
			id, addr = partition.Leader, addrs[partition.Leader]
		}
		return addr != ""
	}, "a leader of "+stream)
	return id, addr
}

func (r *rig) whole(stream string) {
	until(func() bool {
		partition, addrs := r.place(stream)
		return partition != nil && len(partition.Isr) == 3 && len(addrs) == 3
	}, "three brokers in sync")
}

func (r *rig) replicated(suffix string) string {
	stream := r.create(suffix, lift.ReplicationFactor(3), lift.MinISR(2))
	r.whole(stream)
	return stream
}

// insist publishes until an acknowledgement comes, at any broker, and returns the offset.
func (r *rig) insist(stream, value string) int64 {
	offset := int64(-1)
	until(func() bool {
		for _, addr := range r.addrs {
			ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
			told, err := r.stubs[addr].Publish(ctx, &api.PublishRequest{
				Stream: stream, Value: []byte(value), AckPolicy: api.AckPolicy_ALL,
			})
			cancel()
			if err == nil && told.Ack != nil {
				offset = told.Ack.Offset
				return true
			}
		}
		return false
	}, "an acknowledgement")
	return offset
}

// at returns all records of partition 0 as one broker has them.
func (r *rig) at(addr, stream string, replica bool) []*api.Message {
	found := []*api.Message{}
	until(func() bool {
		found = found[:0]
		call, err := r.stubs[addr].Subscribe(r.ctx, &api.SubscribeRequest{
			Stream: stream, StartPosition: api.StartPosition_EARLIEST,
			StopPosition: api.StopPosition_STOP_LATEST, ReadISRReplica: replica,
		})
		for err == nil {
			var message *api.Message
			if message, err = call.Recv(); err == nil {
				found = append(found, message)
			}
		}
		return len(found) > 1
	}, "the records at "+addr)
	return found[1:]
}

func (r *rig) holds(stream string, acked map[int64]string) {
	_, addr := r.leader(stream)
	found := map[int64]string{}
	for _, message := range r.at(addr, stream, false) {
		found[message.Offset] = string(message.Value)
	}
	for offset, value := range acked {
		check(found[offset] == value, "offset %d is %q, acknowledged was %q", offset, found[offset], value)
	}
}

func (r *rig) equal(stream string) {
	_, leader := r.leader(stream)
	expected := r.at(leader, stream, false)
	for _, addr := range r.addrs {
		until(func() bool {
			found := r.at(addr, stream, true)
			if len(found) != len(expected) {
				return false
			}
			for place, one := range found {
				check(one.Offset == expected[place].Offset && string(one.Value) == string(expected[place].Value),
					"%s differs at offset %d", addr, one.Offset)
			}
			return true
		}, "as many records at "+addr)
	}
}

func followerRead(r *rig) {
	stream := r.replicated("s")
	for number := range 10 {
		r.publish(stream, fmt.Sprint(number), lift.AckPolicyAll())
	}
	for _, addr := range r.addrs {
		until(func() bool { return len(r.at(addr, stream, true)) == 10 }, "all records at "+addr)
	}
	found := r.read(stream, lift.StartAtEarliestReceived(), lift.StopAtOffset(9), lift.ReadISRReplica())
	same(offsets(found), span(0, 9), "by the client")
}

func notLeader(r *rig) {
	stream := r.replicated("s")
	_, leader := r.leader(stream)
	for end := time.Now().Add(patience); time.Now().Before(end); _, leader = r.leader(stream) {
		// A broker is named as the leader before it has begun to lead.
		_, err := r.stubs[leader].FetchPartitionMetadata(r.ctx, &api.FetchPartitionMetadataRequest{Stream: stream})
		if err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, addr := range r.addrs {
		call, err := r.stubs[addr].Subscribe(r.ctx, &api.SubscribeRequest{Stream: stream})
		must(err, "subscribe")
		_, err = call.Recv()
		_, told := r.stubs[addr].FetchPartitionMetadata(r.ctx, &api.FetchPartitionMetadataRequest{Stream: stream})
		if addr == leader {
			must(err, "the leader")
			must(told, "the leader")
			continue
		}
		refused(err, codes.FailedPrecondition, "a follower")
		refused(told, codes.FailedPrecondition, "a follower's metadata")
		call, err = r.stubs[addr].Subscribe(r.ctx, &api.SubscribeRequest{
			Stream: stream, ReadISRReplica: true, Consumer: &api.Consumer{GroupId: "g", ConsumerId: "c", GroupEpoch: 1},
		})
		must(err, "subscribe")
		_, err = call.Recv()
		refused(err, codes.InvalidArgument, "a member of a group at a follower")
	}
}

// Every broker takes publishes, creations and deletions.
func anyBroker(r *rig) {
	stream := r.replicated("s")
	for number, addr := range r.addrs {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		told, err := r.stubs[addr].Publish(ctx, &api.PublishRequest{Stream: stream, AckPolicy: api.AckPolicy_ALL})
		cancel()
		must(err, "publish at "+addr)
		check(told.Ack.Offset == int64(number), "offset %d", told.Ack.Offset)
		name := fmt.Sprint(r.prefix, "n", number)
		_, err = r.stubs[addr].CreateStream(r.ctx, &api.CreateStreamRequest{Name: name, Subject: name, ReplicationFactor: 2})
		must(err, "create at "+addr)
		_, err = r.stubs[addr].DeleteStream(r.ctx, &api.DeleteStreamRequest{Name: name})
		must(err, "delete at "+addr)
	}
	_, err := r.stub().CreateStream(r.ctx, &api.CreateStreamRequest{Name: r.prefix + "x", Subject: "x", ReplicationFactor: 4})
	refused(err, codes.InvalidArgument, "more replicas than brokers")
}

// kill -9 of the leader under acknowledged publishes, with a subscriber of the client that goes on.
func leaderKill(r *rig) {
	stream := r.replicated("s")
	id, dead := r.leader(stream)
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	acked := map[int64]string{}
	put := func(value string) {
		offset := r.insist(stream, value)
		_, twice := acked[offset]
		check(!twice, "offset %d was acknowledged twice", offset)
		acked[offset] = value
	}
	for number := range 100 {
		put(fmt.Sprint("before ", number))
	}
	r.ask("kill", id)
	r.without(dead)
	for number := range 100 {
		put(fmt.Sprint("after ", number))
	}
	after, _ := r.leader(stream)
	check(after != id, "another leader")
	r.holds(stream, acked)
	newest := int64(0)
	for offset := range acked {
		newest = max(newest, offset)
	}
	for offset := int64(0); offset <= newest; offset++ {
		message := found.next()
		check(message.Offset() == offset, "the subscriber got %d instead of %d", message.Offset(), offset)
		value, known := acked[offset]
		check(!known || value == string(message.Value()), "the subscriber got %q", message.Value())
	}
	var fresh lift.Client
	until(func() bool { // the metadata names the dead broker until its session ends
		fresh, err = lift.Connect(r.addrs)
		return err == nil
	}, "a new client of the two others")
	defer fresh.Close()
	ack, err := fresh.Publish(r.ctx, stream, []byte("x"), lift.AckPolicyAll())
	must(err, "its publish")
	check(ack.Offset() > newest, "offset %d", ack.Offset())
	r.ask("start", id)
	r.addrs = append(r.addrs, dead)
	r.whole(stream)
	r.equal(stream)
}

func (r *rig) without(addr string) {
	left := []string{}
	for _, one := range r.addrs {
		if one != addr {
			left = append(left, one)
		}
	}
	r.addrs = left
}

// A follower that is gone leaves the ISR, acknowledgements of ALL go on, and it comes back.
func isr(r *rig) {
	stream := r.replicated("s")
	check(r.insist(stream, "0") == 0, "with three")
	partition, addrs := r.place(stream)
	follower := ""
	for _, one := range partition.Isr {
		if one != partition.Leader {
			follower = one
		}
	}
	dead := addrs[follower]
	r.ask("kill", follower)
	r.without(dead)
	r.insist(stream, "1")
	until(func() bool {
		partition, _ := r.place(stream)
		return partition != nil && len(partition.Isr) == 2
	}, "the ISR without the follower")
	r.insist(stream, "2")
	r.ask("start", follower)
	r.addrs = append(r.addrs, dead)
	r.whole(stream)
	r.insist(stream, "3")
	r.equal(stream)
}

// Leaders that fail one after the other leave one history (KIP-101).
func twoLeaderChanges(r *rig) {
	stream := r.replicated("s")
	acked := map[int64]string{}
	for round := range 2 {
		for number := range 20 {
			value := fmt.Sprint(round, " ", number)
			acked[r.insist(stream, value)] = value
		}
		id, addr := r.leader(stream)
		// What this leader alone may have: not acknowledged, and not replicated if it dies first.
		for range 5 {
			_, _ = r.stubs[addr].Publish(r.ctx, &api.PublishRequest{Stream: stream, AckPolicy: api.AckPolicy_NONE})
		}
		r.ask("kill", id)
		r.without(addr)
		value := fmt.Sprint("between ", round)
		acked[r.insist(stream, value)] = value
		r.ask("start", id)
		r.addrs = append(r.addrs, addr)
		r.whole(stream)
	}
	r.holds(stream, acked)
	r.equal(stream)
}

// A cursor outlives the broker that the client set it at.
func cursorFailover(r *rig) {
	stream := r.replicated("s")
	must(r.client.SetCursor(r.ctx, "c", stream, 0, 42), "set")
	told, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{Streams: []string{"__cursors"}})
	must(err, "metadata")
	id := told.StreamMetadata[0].Partitions[0].Leader
	addr := ""
	for _, one := range told.Brokers {
		if one.Id == id {
			addr = fmt.Sprintf("%s:%d", one.Host, one.Port)
		}
	}
	r.ask("kill", id)
	r.without(addr)
	until(func() bool {
		client, err := lift.Connect(r.addrs)
		if err != nil {
			return false
		}
		defer client.Close()
		offset, err := client.FetchCursor(r.ctx, "c", stream, 0)
		check(err != nil || offset == 42, "the cursor is %d", offset)
		return err == nil && client.SetCursor(r.ctx, "c", stream, 0, 43) == nil
	}, "the cursor at another broker")
	r.ask("start", id)
}

// A coordinator that is gone is reported, and another one goes on.
func coordinatorLoss(r *rig) {
	stream := r.create("s", lift.Partitions(2), lift.ReplicationFactor(3), lift.MinISR(2))
	r.whole(stream)
	quick := lift.FetchAssignmentsInterval(func(time.Duration) time.Duration { return 500 * time.Millisecond })
	group := r.prefix + "g"
	found := &received{found: map[string]int{}}
	consumer, err := r.client.CreateConsumer(group, lift.AutoOffsetEarliest(), quick)
	must(err, "a consumer")
	must(consumer.Subscribe(r.ctx, []string{stream}, found.handle), "subscribe")
	r.insist(stream, "before")
	until(func() bool { return found.count() == 1 }, "a message")
	told, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{Groups: []string{group}})
	must(err, "metadata")
	id, epoch := told.GroupMetadata[0].Coordinator, told.GroupMetadata[0].Epoch
	addr := ""
	for _, one := range told.Brokers {
		if one.Id == id {
			addr = fmt.Sprintf("%s:%d", one.Host, one.Port)
		}
	}
	r.ask("kill", id)
	r.without(addr)
	until(func() bool {
		told, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{Groups: []string{group}})
		return err == nil && told.GroupMetadata[0].Coordinator != id && told.GroupMetadata[0].Epoch > epoch
	}, "another coordinator in a later epoch")
	r.insist(stream, "after")
	until(func() bool { return found.count() >= 2 }, "the member goes on")
	r.ask("start", id)
}
