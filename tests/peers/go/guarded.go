// What a tenant with a token may do, and what not, over TLS: liftpeer -addrs A -ca FILE -token FILE
// guarded STREAM HIDDEN. The client is unmodified: it sends the metadata of the context that it gets.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

func trust(caFile string) *tls.Config {
	pem, err := os.ReadFile(caFile)
	must(err, "the authority")
	pool := x509.NewCertPool()
	check(pool.AppendCertsFromPEM(pem), "%s has no certificate", caFile)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
}

func withToken(ctx context.Context, file string) context.Context {
	token, err := os.ReadFile(file)
	must(err, "the token")
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
}

func guarded(addrs []string, caFile, tokenFile string, streams []string) (err error) {
	defer func() { err = told(recover(), err) }()
	stream, hidden := streams[0], streams[1]
	options := []lift.ClientOption{lift.TLSConfig(trust(caFile)), lift.AckWaitTime(20 * time.Second)}
	_, err = lift.Connect(addrs, options...)
	refused(err, codes.Unauthenticated, "a client without a token")
	// The publish streams live as long as the context of Connect.
	client, err := lift.ConnectCtx(withToken(context.Background(), tokenFile), addrs, options...)
	must(err, "connect with a token")
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := &rig{ctx: withToken(ctx, tokenFile), client: client}

	known, err := client.FetchMetadata(r.ctx)
	must(err, "metadata")
	check(known.GetStream(hidden) == nil, "the metadata tells of %s", hidden)
	ack := r.publish(stream, "from go", lift.AckPolicyAll())
	messages := r.readAll(stream)
	last := messages[len(messages)-1]
	check(string(last.Value()) == "from go" && last.Offset() == ack.Offset(), "read %q", last.Value())

	err = client.CreateStream(r.ctx, "hr.payroll", hidden+"2")
	refused(err, codes.PermissionDenied, "a stream of others")
	refused(client.DeleteStream(r.ctx, hidden), codes.PermissionDenied, "delete")
	refused(client.PauseStream(r.ctx, hidden), codes.PermissionDenied, "pause")
	_, err = client.PublishToSubject(r.ctx, "hr.payroll", []byte("no"))
	refused(err, codes.PermissionDenied, "publish to a subject of others")
	return nil
}
