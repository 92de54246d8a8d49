#!/usr/bin/env bash
# A federation on this machine: a SuperLink, four SuperNodes and one run. Everything ends with this script.
#   run.sh numpy|torch [DIRECTORY]      PORT is the first of six ports on loopback, 8000 by default
set -euo pipefail
# Every program in a process group of its own, so that what it starts ends with it.
set -m
cd "$(dirname "$0")"
app=${1:?numpy or torch}
place=$(realpath -m "${2:-runs/flower-$app}")
port=${PORT:-8000}
export FLWR_TELEMETRY_ENABLED=0 FLWR_HOME
FLWR_HOME=$(mktemp -d)
children=()
end() {
    for child in "${children[@]}"; do kill -- "-$child" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for child in "${children[@]}"; do kill -KILL -- "-$child" 2>/dev/null || true; done
    rm -rf "$FLWR_HOME"
}
trap end EXIT

cat >"$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "local"
[superlink.local]
address = "127.0.0.1:$port"
insecure = true
TOML
flower-superlink --insecure --host 127.0.0.1 --port "$port" --disable-runtime-dependency-installation &
children+=($!)
for user in 0 1 2 3; do
    flower-supernode --insecure --superlink "127.0.0.1:$port" --port $((port + 1 + user)) --node-config "user=$user" &
    children+=($!)
done
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.2; done
mkdir -p "$place"
flwr run "$app" local --stream --run-config "run='$place'"
