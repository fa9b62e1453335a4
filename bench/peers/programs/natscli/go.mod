// Pins the `nats` command (its `nats bench`); bench/peers/nats_tools.py builds it from here with
//	go build -o nats github.com/nats-io/natscli/nats
module headwater/bench/peers/programs/natscli

go 1.25.0

require github.com/nats-io/natscli v0.4.0
