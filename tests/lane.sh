#!/usr/bin/env bash
# Run a command as one lane of `make test`. Its output goes to build/log. If the command fails, show the end of the output.
set -eu
cd "$(dirname "$0")/.."
name=$1 log=build/log/$1.log began=$SECONDS code=0
shift
# Numpy's threads use a core even while they wait, and the lanes share few cores.
export OPENBLAS_NUM_THREADS=1
mkdir -p build/log
rm -f build/log/"$name"*.xml
"$@" >"$log" 2>&1 </dev/null || code=$?
if [ "$code" = 0 ]; then
  echo "test: $name: $((SECONDS - began)) s" | tee -a build/log/lanes
else
  echo "test: $name FAILED after $((SECONDS - began)) s, $log ends with:"
  tail -n 60 "$log"
  echo "test: of $log:"
  plain=$(sed 's/\x1b\[[0-9;]*m//g' "$log")
  reasons=$(grep -aE -A14 '(FAILED|ERROR) tests/|fatal: |[Ee]rror: ' <<<"$plain" | cut -c-400 | tail -n 40)
  echo "$reasons"
  tests=$(find build/log -name "$name*.xml" -exec python3 tests/failures.py {} +)
  printf 'test: %s FAILED after %s s:\n%s\n' "$name" "$((SECONDS - began))" "${tests:-$(tail -n 20 <<<"$reasons")}" >>build/log/lanes
fi
exit $code
