#!/usr/bin/env bash
# What needs a GPU, part by part: benchmarks/gpu.sh FOLDER SECONDS [tests] [shapes] [losses] [alone] [regret]
# WHOLE=1 has the grid with all its batch sizes, ROUNDS=2 its cells once more.
# Results go to FOLDER, where those of an earlier call are gone on with. Nothing new is begun after SECONDS.
set -u
folder=$(realpath -m "$1") end=$(($(date +%s) + $2))
shift 2
cd "$(dirname "$0")"
mkdir -p "$folder"
python=${PYTHON:-python3}
left() { echo $((end > $(date +%s) ? end - $(date +%s) : 0)); }
for part in "$@"; do
  [ "$(left)" -gt 20 ] || break
  case $part in
    tests) "$python" -m pytest -q -p no:cacheprovider ../tests/test_cuda.py ;;
    shapes) "$python" convolutions.py --record --output "$folder" ;;
    losses) "$python" losses.py --output "$folder" ;;
    alone) "$python" limit.py --alone --limit "$(left)" --previous "$folder/limit-alone.json" --output "$folder" ;;
    regret) "$python" regret.py --gpu --keep-memory --limit "$(left)" --rounds "${ROUNDS:-1}" ${WHOLE:+--whole} --timelines --output "$folder/regret" ;;
    *) echo "no part is called $part" >&2 && exit 2 ;;
  esac
  echo "$part: $(left) s left"
done
