#!/usr/bin/env bash
# Runs a molecule scenario on a lab of its own, and says how long it took. `serving` goes through every release of the lab;
# `models` takes the image that `serving` built, where it did.
set -eu
cd "$(dirname "$0")/.."
scenario=$1
export HOSTS=2 ANSIBLE_CONFIG="$PWD/ansible.cfg" LAB=$scenario
releases=lab-24.01
case $scenario in
  default) LAB=molecule ;;
  serving) HOSTS=1 releases="lab-24.01 lab-24.10" ;;
  models) HOSTS=3 LAB=serving releases=lab-24.10 ;;
esac
# Another scenario may want the same lab.
mkdir -p build
exec 9>"build/lab-$LAB.lock"
flock 9
for LAB_RELEASE in $releases; do
  export LAB_RELEASE
  began=$SECONDS
  code=0
  molecule test --scenario-name "$scenario" --destroy always 9>&- || code=$?
  echo "molecule: scenario $scenario, $LAB_RELEASE: $((SECONDS - began)) s"
  [ $code -eq 0 ] || exit $code
done
