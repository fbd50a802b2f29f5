#!/usr/bin/env bash
# Run a molecule scenario on a separate lab, and report how long it took.
set -eu
cd "$(dirname "$0")/.."
began=$SECONDS
code=0
molecule test --scenario-name "$1" --destroy always || code=$?
echo "molecule: scenario $1: $((SECONDS - began)) s"
exit $code
