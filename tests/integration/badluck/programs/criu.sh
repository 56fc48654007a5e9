#!/bin/sh
# CRIU, unless the file TELL says that something shall go wrong: criu.sh TELL CRIU ARGUMENTS…
tell=$1 criu=$2
shift 2
directory() {
    while [ $# -gt 1 ]; do
        [ "$1" = --images-dir ] && echo "$2"
        shift
    done
}
read -r word seconds 2>/dev/null <"$tell" || word=
wait_for_other_word() { # at most 20 s
    tries=400
    while [ "$(cat "$tell")" = "$word" ] && [ $tries -gt 0 ]; do
        sleep 0.05
        tries=$((tries - 1))
    done
}
case "$1/$word" in
dump/*) ;;
restore/missing)
    echo '(00.012345) Error (criu/files-reg.c:2278): Can'"'"'t open file made/up on restore: No such file or directory' \
        >"$(directory "$@")/restore.log"
    exit 1
    ;;
restore/wait-restore)
    wait_for_other_word
    exec "$criu" "$@"
    ;;
*) exec "$criu" "$@" ;;
esac
case "$word" in
says)
    echo '(00.012345) Error (criu/files.c:680): Unknown shit 600 (anon_inode:[made-up])' \
        >"$(directory "$@")/dump.log"
    exit 1
    ;;
dies) kill -KILL $$ ;;
killed) # the real one, when it has begun to write, as the kernel does for want of memory
    "$criu" "$@" &
    until [ -e "$(directory "$@")/pages-1.img" ] || ! kill -0 $!; do sleep 0.01; done
    kill -KILL $!
    wait
    kill -KILL $$
    ;;
full)
    ulimit -f 8 # blocks of 512 bytes: CRIU itself cannot write its images
    ;;
hangs)
    trap '' TERM INT HUP
    sleep 600 &
    wait
    ;;
slow) sleep "$seconds" ;;
wait) wait_for_other_word ;;
esac
exec "$criu" "$@"
