#!/usr/bin/env bash
# Runs a molecule scenario on a lab of its own, and says how long it took.
set -eu
cd "$(dirname "$0")/.."
scenario=$1
export HOSTS=2 ANSIBLE_CONFIG="$PWD/ansible.cfg" LAB=$scenario LAB_RELEASE=lab-24.01
case $scenario in
  default) LAB=molecule ;;
  serving) HOSTS=1 ;;
  models) HOSTS=3 LAB_RELEASE=lab-24.10 ;;
esac
began=$SECONDS
code=0
molecule test --scenario-name "$scenario" --destroy always || code=$?
echo "molecule: scenario $scenario, $LAB_RELEASE: $((SECONDS - began)) s"
exit $code
