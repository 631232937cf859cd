#!/usr/bin/env bash
# One question to the bundled model.
set -eu
weft=$1
ask="What is the capital of France?"
echo "weft generate models/tiny --prompt \"$ask\""
"$weft" generate models/tiny --prompt "$ask" --temperature 0
