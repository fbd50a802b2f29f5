#!/usr/bin/env bash
# Runs molecule scenarios one after the other on a lab of their own, and says how long each took.
set -eu
cd "$(dirname "$0")/.."
export LAB=molecule HOSTS=2 ANSIBLE_CONFIG="$PWD/ansible.cfg"
code=0
for scenario in "$@"; do
  began=$SECONDS
  molecule test --scenario-name "$scenario" --destroy always || code=1
  echo "molecule: scenario $scenario: $((SECONDS - began)) s"
done
exit $code
