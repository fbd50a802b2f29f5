#!/usr/bin/env bash
# Runs molecule scenarios, each on a lab of its own, and says how long each took. `serving` goes through every release of the lab;
# `models` takes the image that `serving` built, where it did.
set -eu
cd "$(dirname "$0")/.."
export ANSIBLE_CONFIG="$PWD/ansible.cfg"
for scenario; do
  export HOSTS=2 LAB=$scenario
  releases=lab-24.01
  case $scenario in
    default) LAB=molecule ;;
    serving) HOSTS=1 releases="lab-24.01 lab-24.10" ;;
    models) HOSTS=3 LAB=serving releases=lab-24.10 ;;
  esac
  for LAB_RELEASE in $releases; do
    export LAB_RELEASE
    began=$SECONDS
    code=0
    molecule test --scenario-name "$scenario" --destroy always || code=$?
    echo "molecule: scenario $scenario, $LAB_RELEASE: $((SECONDS - began)) s"
    [ $code -eq 0 ] || exit $code
  done
done
