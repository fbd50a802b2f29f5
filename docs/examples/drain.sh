#!/bin/sh
# A drain hook for a HAProxy that npufleet does not manage: drain.sh drain|undrain|is_drained. npufleet runs this script on the
# controller, with NPUFLEET_HOST and NPUFLEET_WEIGHT in the environment. BALANCER is a command that runs a shell on the balancer,
# such as "ssh root@lb.example.com". The server names in haproxy.cfg have to be the names of the hosts in the inventory.
set -eu
: "${BALANCER:?is a command that runs a shell on the balancer}" "${NPUFLEET_HOST:?is set by npufleet}"
SOCKET=${SOCKET:-/run/haproxy/admin.sock}
BACKENDS=${BACKENDS:-npufleet_http npufleet_grpc}

haproxy() {
  # HAProxy's answer is a text after an error, and an empty line after a successful change.
  printf '%s\n' "$1" | $BALANCER "socat - UNIX-CONNECT:$SOCKET"
}

change() {
  answer=$(haproxy "$1")
  [ -z "$answer" ] || { echo "haproxy: $1: $answer" >&2; exit 2; }
}

case ${1:-} in
drain)
  for backend in $BACKENDS; do change "set server $backend/$NPUFLEET_HOST state drain"; done
  ;;
undrain)
  for backend in $BACKENDS; do
    change "set server $backend/$NPUFLEET_HOST weight $NPUFLEET_WEIGHT"
    change "set server $backend/$NPUFLEET_HOST state ready"
  done
  ;;
is_drained)
  # Exit code 0: no request is in flight. 1: the host has requests. The fifth field of a row is the number of current sessions.
  for backend in $BACKENDS; do
    row=$(haproxy 'show stat' | grep "^$backend,$NPUFLEET_HOST,") || { echo "haproxy: $backend has no server $NPUFLEET_HOST" >&2; exit 2; }
    [ "$(echo "$row" | cut -d, -f5)" = 0 ] || exit 1
  done
  ;;
*)
  echo "usage: $0 drain|undrain|is_drained" >&2
  exit 2
  ;;
esac
