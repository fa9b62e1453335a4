// Streams: create, capture from NATS, wildcards, groups on a subject, metadata, retention.

package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func init() {
	single["create"] = create
	single["plain-nats"] = plainNATS
	single["several-streams"] = severalStreams
	single["wildcard"] = wildcard
	single["load-balance"] = loadBalance
	single["partitions"] = partitions
	single["metadata-unknown"] = metadataUnknown
	single["event-timestamps"] = eventTimestamps
	single["retention-bytes"] = retentionBytes
	single["retention-messages"] = retentionMessages
	single["retention-age"] = retentionAge
	single["compaction"] = compaction
	single["activity"] = activity
	single["encryption"] = encryption
}

func create(r *rig) {
	name := r.create("s")
	err := r.client.CreateStream(r.ctx, "other.subject", name)
	check(err == lift.ErrStreamExists, "a second stream of the name: %v", err)
	for what, request := range map[string]*api.CreateStreamRequest{
		"no name":           {Subject: "a"},
		"no subject":        {Name: r.prefix + "n"},
		"a space":           {Name: r.prefix + "n", Subject: "a b"},
		"an empty token":    {Name: r.prefix + "n", Subject: "a..b"},
		"reserved":          {Name: "__cursors", Subject: "a"},
		"reserved too":      {Name: "__activity", Subject: "a"},
		"too many replicas": {Name: r.prefix + "n", Subject: "a", ReplicationFactor: 99},
		"minus two":         {Name: r.prefix + "n", Subject: "a", ReplicationFactor: -2},
	} {
		_, err := r.stub().CreateStream(r.ctx, request)
		refused(err, codes.InvalidArgument, what)
	}
	r.create("all", lift.MaxReplication())
	must(r.client.DeleteStream(r.ctx, name), "delete")
	check(r.client.DeleteStream(r.ctx, name) == lift.ErrNoSuchStream, "deleted twice")
	_, err = r.stub().DeleteStream(r.ctx, &api.DeleteStreamRequest{Name: "__cursors"})
	refused(err, codes.InvalidArgument, "delete what is reserved")
	again := r.create("s")
	check(r.publish(again, "x").Offset() == 0, "a new stream of an old name begins at 0")
}

func plainNATS(r *rig) {
	subject := r.prefix + "s"
	must(r.nc.Publish(subject, []byte("before")), "publish")
	must(r.nc.Flush(), "flush")
	stream := r.create("s")
	for number := range 3 {
		must(r.nc.PublishRequest(subject, "a.reply", fmt.Append(nil, number)), "publish")
	}
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	for number := range 3 {
		message := found.next()
		check(message.Offset() == int64(number), "offset %d", message.Offset())
		check(string(message.Value()) == fmt.Sprint(number), "value %q", message.Value())
		check(len(message.Key()) == 0, "key %q", message.Key())
		check(message.Subject() == subject, "subject %q", message.Subject())
		check(message.ReplySubject() == "a.reply", "reply %q", message.ReplySubject())
		check(string(message.Headers()["subject"]) == subject, "headers %v", message.Headers())
		check(string(message.Headers()["reply"]) == "a.reply", "headers %v", message.Headers())
	}
}

func severalStreams(r *rig) {
	subject := r.prefix + "shared"
	for _, suffix := range []string{"a", "b"} {
		must(r.client.CreateStream(r.ctx, subject, r.prefix+suffix), "create")
	}
	for number := range 4 {
		must(r.nc.Publish(subject, fmt.Append(nil, number)), "publish")
	}
	for _, suffix := range []string{"a", "b"} {
		found, err := r.subscribe(r.prefix+suffix, lift.StartAtEarliestReceived())
		must(err, "subscribe")
		for number := range 4 {
			check(found.next().Offset() == int64(number), "offsets are a stream's own")
		}
	}
}

func wildcard(r *rig) {
	stream := r.prefix + "w"
	must(r.client.CreateStream(r.ctx, r.prefix+".*", stream), "create")
	for _, token := range []string{"a", "b"} {
		must(r.nc.Publish(r.prefix+"."+token, []byte(token)), "publish")
	}
	must(r.nc.Publish(r.prefix+".a.b", []byte("too deep")), "publish")
	must(r.nc.Publish(r.prefix+".c", []byte("c")), "publish")
	found, err := r.subscribe(stream, lift.StartAtEarliestReceived())
	must(err, "subscribe")
	for _, token := range []string{"a", "b", "c"} {
		message := found.next()
		check(message.Subject() == r.prefix+"."+token, "subject %q", message.Subject())
	}
}

func loadBalance(r *rig) {
	subject, count := r.prefix+"shared", 40
	for _, suffix := range []string{"a", "b"} {
		must(r.client.CreateStream(r.ctx, subject, r.prefix+suffix, lift.Group("workers")), "create")
	}
	must(r.client.CreateStream(r.ctx, subject, r.prefix+"all"), "create")
	for number := range count {
		must(r.nc.Publish(subject, fmt.Appendf(nil, "%02d", number)), "publish")
	}
	all, err := r.subscribe(r.prefix+"all", lift.StartAtEarliestReceived())
	must(err, "subscribe")
	expected := []string{}
	for range count {
		expected = append(expected, string(all.next().Value()))
	}
	first, err := r.subscribe(r.prefix+"a", lift.StartAtEarliestReceived())
	must(err, "subscribe")
	second, err := r.subscribe(r.prefix+"b", lift.StartAtEarliestReceived())
	must(err, "subscribe")
	until(func() bool { return len(first.messages)+len(second.messages) >= count }, "all messages")
	first.silent0()
	shared := []string{}
	for _, one := range []*subscription{first, second} {
		for len(one.messages) > 0 {
			shared = append(shared, string(one.next().Value()))
		}
	}
	sort.Strings(shared)
	sort.Strings(expected)
	same(shared, expected, "each message in one of the streams")
}

// silent0 gives messages that should not come time to come.
func (s *subscription) silent0() { time.Sleep(200 * time.Millisecond) }

func partitions(r *rig) {
	stream := r.create("p", lift.Partitions(3))
	must(r.nc.Publish(stream+".2", []byte("nats")), "publish")
	until(func() bool {
		info, err := r.client.FetchPartitionMetadata(r.ctx, stream, 2)
		return err == nil && info.NewestOffset() == 0
	}, "partition 2 has the message of its subject")
	for range 6 {
		r.publish(stream, "x", lift.PartitionByRoundRobin())
	}
	for number := range 5 {
		r.publish(stream, fmt.Sprint(number), lift.Key([]byte("k")), lift.PartitionByKey())
	}
	keyed := 0
	for partition := range int32(3) {
		order := -1
		for _, message := range r.readAll(stream, lift.Partition(partition)) {
			if string(message.Key()) == "k" {
				keyed++
				var number int
				fmt.Sscan(string(message.Value()), &number)
				check(number == order+1, "a key's messages are in order, in one partition")
				order = number
			}
		}
	}
	check(keyed == 5, "%d of 5 messages with a key", keyed)
	_, err := r.client.Publish(r.ctx, stream, []byte("x"), lift.ToPartition(3))
	check(err == lift.ErrNoSuchPartition, "partition 3 of 3: %v", err)
}

func metadataUnknown(r *rig) {
	stream := r.create("s", lift.Partitions(2))
	told, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{
		Streams: []string{stream, r.prefix + "no"}, Groups: []string{r.prefix + "no"},
	})
	must(err, "metadata")
	check(len(told.Brokers) == len(r.addrs), "%d brokers", len(told.Brokers))
	check(len(told.StreamMetadata) == 2, "both streams are told of")
	for _, one := range told.StreamMetadata {
		unknown := one.Error == api.StreamMetadata_UNKNOWN_STREAM
		check(unknown == (one.Name != stream), "%s: %v", one.Name, one.Error)
		if !unknown {
			check(len(one.Partitions) == 2, "%d partitions", len(one.Partitions))
			check(one.Subject == stream, "subject %q", one.Subject)
			check(one.CreationTimestamp > 0, "no creation time")
			for _, partition := range one.Partitions {
				check(partition.Leader != "" && len(partition.Isr) == 1, "%v", partition)
			}
		}
	}
	check(len(told.GroupMetadata) == 1, "the group is told of")
	check(told.GroupMetadata[0].Error == api.ConsumerGroupMetadata_UNKNOWN_GROUP, "an error")
	none, err := r.stub().FetchMetadata(r.ctx, &api.FetchMetadataRequest{})
	must(err, "metadata")
	check(len(none.GroupMetadata) == 0, "no group is asked for")
	check(len(none.StreamMetadata) > 1, "all streams are told of")
	_, err = r.stub().FetchPartitionMetadata(r.ctx, &api.FetchPartitionMetadataRequest{Stream: r.prefix + "no"})
	refused(err, codes.NotFound, "a stream that is not there")
	_, err = r.stub().FetchPartitionMetadata(r.ctx, &api.FetchPartitionMetadataRequest{Stream: stream, Partition: 2})
	refused(err, codes.NotFound, "a partition that is not there")
}

func eventTimestamps(r *rig) {
	stream := r.create("s")
	told := func() *lift.PartitionInfo {
		info, err := r.client.FetchPartitionMetadata(r.ctx, stream, 0)
		must(err, "metadata")
		return info
	}
	check(told().MessagesReceivedTimestamps().FirstTime().IsZero(), "no message was received yet")
	check(told().PauseTimestamps().FirstTime().IsZero(), "never paused")
	r.fill(stream, 2)
	info := told()
	first, latest := info.MessagesReceivedTimestamps().FirstTime(), info.MessagesReceivedTimestamps().LatestTime()
	check(!first.IsZero() && !latest.Before(first), "received: %v, %v", first, latest)
	check(info.HighWatermark() == 1 && info.NewestOffset() == 1, "offsets %d, %d", info.HighWatermark(), info.NewestOffset())
	must(r.client.SetStreamReadonly(r.ctx, stream), "read-only")
	check(!told().ReadonlyTimestamps().FirstTime().IsZero(), "the time of read-only")
	must(r.client.SetStreamReadonly(r.ctx, stream, lift.Readonly(false)), "read and write")
	must(r.client.PauseStream(r.ctx, stream), "pause")
	check(r.publish(stream, "x").Offset() == 2, "a publish resumes")
	check(!told().PauseTimestamps().LatestTime().Before(told().PauseTimestamps().FirstTime()), "the time of the pause")
	check(!told().PauseTimestamps().FirstTime().IsZero(), "the time of the pause")
}

// Retention removes whole segments, in the table too, some time later. Here is shown what holds at any
// time: the newest message stays, and no gap comes between those that are left. A reader that retention
// overtakes is told so, and reads again.
func retention(r *rig, option lift.StreamOption) {
	stream := r.create("s", option, lift.SegmentMaxBytes(4096), lift.CleanerInterval(time.Second))
	for number := range 40 {
		r.publish(stream, fmt.Sprintf("%02d", number)+strings.Repeat("x", 1000))
	}
	var found []*lift.Message
	until(func() bool {
		messages, ended := r.readOnce(stream, lift.StartAtEarliestReceived(), lift.StopAtLatestReceived())
		found = messages
		if status.Code(ended) == codes.OutOfRange {
			return false
		}
		check(ended == lift.ErrReadonlyPartition, "ended with %v", ended)
		return true
	}, "a whole read")
	check(len(found) > 0 && found[len(found)-1].Offset() == 39, "the newest message is kept")
	for place, message := range found[1:] {
		check(message.Offset() == found[place].Offset()+1, "no gap: %v", offsets(found))
	}
}

func retentionBytes(r *rig)    { retention(r, lift.RetentionMaxBytes(8192)) }
func retentionMessages(r *rig) { retention(r, lift.RetentionMaxMessages(5)) }
func retentionAge(r *rig)      { retention(r, lift.RetentionMaxAge(time.Second)) }

// A compacted log keeps the last message of each key, and its offsets.
func compaction(r *rig) {
	stream := r.create("s", lift.CompactEnabled(true), lift.SegmentMaxBytes(4096), lift.CleanerInterval(time.Second))
	last := map[string]int64{}
	for number := range 60 {
		key := fmt.Sprint(number % 4)
		ack := r.publish(stream, fmt.Sprintf("%02d", number)+strings.Repeat("x", 500), lift.Key([]byte(key)))
		last[key] = ack.Offset()
	}
	found := r.readAll(stream)
	seen := map[string]int64{}
	before := int64(-1)
	for _, message := range found {
		check(message.Offset() > before, "offsets rise: %v", offsets(found))
		before = message.Offset()
		check(strings.HasPrefix(string(message.Value()), fmt.Sprintf("%02d", message.Offset())), "its own value")
		seen[string(message.Key())] = message.Offset()
	}
	for key, offset := range last {
		check(seen[key] == offset, "the last message of key %s is at %d, not %d", key, offset, seen[key])
	}
}

// The events have rising ids, and those of our own streams are among them.
func activity(r *rig) {
	found, err := r.subscribe("__activity", lift.StartAtEarliestReceived())
	must(err, "subscribe to the activity stream")
	stream := r.create("s")
	must(r.client.PauseStream(r.ctx, stream), "pause")
	must(r.client.SetStreamReadonly(r.ctx, stream), "read-only")
	must(r.client.DeleteStream(r.ctx, stream), "delete")
	expected := []api.ActivityStreamOp{
		api.ActivityStreamOp_CREATE_STREAM, api.ActivityStreamOp_PAUSE_STREAM,
		api.ActivityStreamOp_SET_STREAM_READONLY, api.ActivityStreamOp_DELETE_STREAM,
	}
	before, first := uint64(0), true
	for len(expected) > 0 {
		event := parseEvent(found.next().Value())
		check(first || event.Id > before, "id %d behind %d", event.Id, before)
		first, before = false, event.Id
		if eventStream(event) == stream {
			check(event.Op == expected[0], "%v instead of %v", event.Op, expected[0])
			expected = expected[1:]
		}
	}
}

func encryption(r *rig) {
	stream := r.create("s", lift.Encryption(true))
	r.publish(stream, "a secret that must not be on disk")
	same(values(r.readAll(stream)), []string{"a secret that must not be on disk"}, "what is read")
}
