#!/usr/bin/env bash
# The paper's Table 1 on procedural knees of its size: the commands, for one GPU, in a folder for outputs.
#   bash lab/table1.sh PART        PART: greedy | gammas | greedy-long | gammas-long | alphazero
# With version 0.2 on an NVIDIA H200 the data take 50 s, five greedy seeds in lockstep 770 s, the evaluation
# 70 s, the entropies 190 s. An interrupted part resumes.
set -euo pipefail

data=(--data stores/knee --reconstructor knee-unet)
baselines=(random equispaced-one equispaced-two center-out fixed na-oracle oracle)

train() { # name of the method, preset, further options; into runs/PRESET/NAME
  kscout train policy "${data[@]}" --preset "$2" --protocol paper --out "runs/$2/$1" "${@:3}"
}

compare() { # preset, columns at the start, columns to acquire: the paper's rule, last epoch and sampled columns
  local policies=() one
  for one in runs/"$1"/*/seed-*; do policies+=(--policy "$(basename "$(dirname "$one")")=$one"); done
  for one in "${baselines[@]}"; do policies+=(--policy "$one"); done
  kscout evaluate "${data[@]}" --split test --protocol paper --n-initial "$2" --steps "$3" "${policies[@]}" \
    --reference na-oracle --trajectories 8 --seed 0 --seed 1 --seed 2 --overwrite --out "results/$1"
  kscout analyze entropy runs/"$1"/*/seed-* "${data[@]}" --overwrite --out "analyses/$1"
  kscout analyze curves runs/"$1"/*/seed-* --overwrite --out "analyses/$1"
}

[ -d stores/knee ] || kscout data make knee --paper --out stores/knee
case "${1:-}" in
  greedy) train greedy knee-base --method greedy --seeds 5; compare knee-base 16 16 ;;
  gammas)
    train gamma-0.9 knee-base --method ngreedy --gamma 0.9 --seeds 3
    train gamma-1 knee-base --method ngreedy --gamma 1 --seeds 3
    compare knee-base 16 16 ;;
  greedy-long) train greedy knee-long --method greedy --seeds 5; compare knee-long 4 28 ;;
  gammas-long)
    train gamma-0.9 knee-long --method ngreedy --gamma 0.9 --seeds 3
    train gamma-1 knee-long --method ngreedy --gamma 1 --seeds 3
    compare knee-long 4 28 ;;
  alphazero)
    for seed in 0 1 2; do train "alphazero/seed-$seed" knee-base --method alphazero --seed "$seed"; done
    compare knee-base 16 16 ;;
  *) sed -n '2,5p' "$0"; exit 2 ;;
esac
