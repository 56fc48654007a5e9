#!/bin/sh
# CRIU, unless the file TELL says what shall go wrong: criu.sh TELL DIARY CRIU ARGUMENTS…
# Every dump and restore is written down: `unix_ns begins|WHAT-GOES-WRONG verb directory`. When a dump
# ended is in its statistics, counted from here. CRIU takes the place of this shell: the shim acts on its
# own child.
tell=$1 diary=$2 criu=$3
shift 3
directory=
previous=
for argument in "$@"; do
    [ "$previous" = --images-dir ] && directory=$argument
    previous=$argument
done
verb=$1
note() {
    echo "$(date +%s%N) $1 $verb $directory" >>"$diary"
}
run() {
    note begins
    exec "$criu" "$@"
}
read -r word seconds 2>/dev/null <"$tell" || word=
case "$verb/$word" in
dump/?*) note "$word" ;;
restore/missing)
    note "$word"
    echo '(00.012345) Error (criu/files-reg.c:2278): Can'"'"'t open file made/up on restore: No such file or directory' \
        >"$directory/restore.log"
    exit 1
    ;;
dump/ | restore/*) run "$@" ;;
*) exec "$criu" "$@" ;;
esac
case "$word" in
says)
    echo '(00.012345) Error (criu/files.c:680): Unknown shit 600 (anon_inode:[made-up])' \
        >"$directory/dump.log"
    exit 1
    ;;
dies) kill -KILL $$ ;;
killed) # the real one, when it has begun to write, as the kernel does for want of memory
    "$criu" "$@" &
    until [ -e "$directory/pages-1.img" ] || ! kill -0 $!; do sleep 0.01; done
    kill -KILL $!
    wait
    kill -KILL $$
    ;;
full) ulimit -f 8 ;; # blocks of 512 bytes: CRIU itself cannot write its images
hangs)
    trap '' TERM INT HUP
    sleep 600 &
    wait
    ;;
slow) sleep "$seconds" ;;
esac
run "$@"
