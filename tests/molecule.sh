#!/usr/bin/env bash
# Runs a molecule scenario on a lab of its own, and says how long it took.
set -eu
cd "$(dirname "$0")/.."
scenario=$1
export HOSTS=2 ANSIBLE_CONFIG="$PWD/ansible.cfg" LAB=molecule
[ "$scenario" = default ] || LAB=$scenario
began=$SECONDS
code=0
molecule test --scenario-name "$scenario" --destroy always || code=$?
echo "molecule: scenario $scenario: $((SECONDS - began)) s"
exit $code
