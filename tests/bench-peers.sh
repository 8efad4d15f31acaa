#!/usr/bin/env bash
# Installs and runs the bench's peers: Docker and runc from the distribution, with a data root of their own
# and without any network set-up, so that an engine already on the host is left alone.
# Does not pull images: the bench imports Lodge's own base image into them.
#
# usage: bench-peers.sh install | start | stop
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/.." && pwd)
readonly DIR=${LODGE_PEERS_DIR:-$HERE/target/bench/peers}
# A unix socket's path may not exceed 107 bytes, whatever the checkout's depth.
readonly LOGS=$HERE/target/bench
readonly RUN=${LODGE_PEERS_RUN:-/run/lodge-bench-peers}
# Parent of the containers' groups, so that a stop can take away what is its own.
readonly CGROUP=lodge-bench-peers
readonly START_TRIES=300 # of 0.1 s

say() { printf 'bench-peers: %s\n' "$*" >&2; }

need_root() {
  [ "$(id -u)" -eq 0 ] || { say "needs root: run it as root, e.g. with sudo"; exit 1; }
}

# Docker's package starts its service; a policy file for the time of the install prevents that.
install_peers() {
  if command -v dockerd >/dev/null && command -v containerd >/dev/null && command -v runc >/dev/null; then
    return
  fi
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  "$HERE/.ci/deps.sh" bench-peers
}

alive() {
  local pid_file=$1 name=$2 pid
  pid=$(cat "$pid_file" 2>/dev/null) || return 1
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$name" ]
}

# wait_for WHAT CONDITION...: until it holds, bounded.
wait_for() {
  local what=$1 i
  shift
  for ((i = 0; i < START_TRIES; i++)); do
    "$@" && return
    sleep 0.1
  done
  say "$what did not come up; its log is in $LOGS"
  stop_peers
  exit 1
}

ping_docker() {
  curl --silent --fail --unix-socket "$RUN/docker.sock" http://docker/_ping >/dev/null 2>&1
}

start_peers() {
  mkdir -p "$DIR/containerd" "$DIR/docker" "$RUN"
  if ! alive "$RUN/containerd.pid" containerd; then
    printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' >"$DIR/containerd.toml"
    containerd --config "$DIR/containerd.toml" --root "$DIR/containerd" --state "$RUN/containerd" \
      --address "$RUN/containerd.sock" >"$LOGS/containerd.log" 2>&1 &
    echo $! >"$RUN/containerd.pid"
    wait_for containerd test -S "$RUN/containerd.sock"
  fi
  if ! alive "$RUN/docker.pid" dockerd; then
    printf "{}\n" >"$DIR/daemon.json"
    rm -f "$RUN/docker.pid"
    dockerd --config-file "$DIR/daemon.json" --data-root "$DIR/docker" --exec-root "$RUN/docker" \
      --pidfile "$RUN/docker.pid" --host "unix://$RUN/docker.sock" --containerd "$RUN/containerd.sock" \
      --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
      --cgroup-parent "$CGROUP" --storage-driver overlay2 >"$LOGS/dockerd.log" 2>&1 &
    wait_for dockerd ping_docker
  fi
  say "docker listens at $RUN/docker.sock"
}

# end NAME PID_FILE: asks a process of ours to end and waits for it.
end() {
  local name=$1 pid_file=$2 pid i
  alive "$pid_file" "$name" || { rm -f "$pid_file"; return 0; }
  pid=$(cat "$pid_file")
  kill -TERM "$pid"
  for ((i = 0; i < START_TRIES; i++)); do
    [ -d "/proc/$pid" ] || break
    sleep 0.1
  done
  [ ! -d "/proc/$pid" ] || kill -KILL "$pid"
  rm -f "$pid_file"
}

stop_peers() {
  end dockerd "$RUN/docker.pid"
  end containerd "$RUN/containerd.pid"
  # dockerd leaves its namespace mount behind.
  grep -o "$RUN[^ ]*" /proc/mounts | sort -r | xargs -r -n1 umount 2>/dev/null || true
  grep -o "$DIR[^ ]*" /proc/mounts | sort -r | xargs -r -n1 umount 2>/dev/null || true
  find /sys/fs/cgroup -depth -type d -path "*/$CGROUP*" -exec rmdir {} + 2>/dev/null || true
  rm -rf "$RUN" "$DIR"
}

need_root
case ${1:-} in
  install) install_peers ;;
  start) install_peers; start_peers ;;
  stop) stop_peers ;;
  *) say "usage: $0 install | start | stop"; exit 2 ;;
esac
