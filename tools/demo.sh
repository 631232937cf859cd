#!/usr/bin/env bash
# Two questions to the bundled model: one answered at once, one thought through.
set -eu
weft=$1
ask() {
  printf '$ weft generate models/tiny'
  for word in "$@"; do
    case $word in *[!a-zA-Z0-9.=_/-]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$weft" generate models/tiny "$@"
}
ask --prompt "Who are you?" --no-thinking --temperature 0
ask --prompt "100+866=?" --thinking --temperature 0
echo "More: $weft --help, and $weft chat models/tiny"
