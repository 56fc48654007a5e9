#!/bin/sh
# nft, but not before the file NFT_TELL is gone (or 15 s have passed): nft.sh NFT ARGUMENTS…
nft=$1
shift
tries=300
while [ -e "$NFT_TELL" ] && [ $tries -gt 0 ]; do
    sleep 0.05
    tries=$((tries - 1))
done
exec "$nft" "$@"
