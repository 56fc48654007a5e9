#!/bin/sh
# CRIU, unless the file TELL says that the next dump shall go wrong: criu.sh TELL CRIU ARGUMENTS…
tell=$1 criu=$2
shift 2
[ "$1" = dump ] || exec "$criu" "$@"
directory() {
    while [ $# -gt 1 ]; do
        [ "$1" = --images-dir ] && echo "$2"
        shift
    done
}
read -r word seconds 2>/dev/null <"$tell" || word=
case "$word" in
says)
    echo '(00.012345) Error (criu/files.c:680): Unknown shit 600 (anon_inode:[made-up])' \
        >"$(directory "$@")/dump.log"
    exit 1
    ;;
dies) kill -KILL $$ ;;
full)
    ulimit -f 8 # blocks of 512 bytes: CRIU itself cannot write its images
    ;;
hangs)
    trap '' TERM INT HUP
    sleep 600 &
    wait
    ;;
slow) sleep "$seconds" ;;
esac
exec "$criu" "$@"
