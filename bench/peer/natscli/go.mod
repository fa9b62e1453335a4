// Pins the `nats` command (its `nats bench`); bench/peer_tools.py builds it from here with
//	go build -o nats github.com/nats-io/natscli/nats
module headwater/bench/peer/natscli

go 1.25.0

require github.com/nats-io/natscli v0.4.0
