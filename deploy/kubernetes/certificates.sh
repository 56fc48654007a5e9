#!/bin/sh
# Makes the authorities and certificates that the manifests name, below ./certificates (mode 0700):
#
#   certificates.sh llm-node-0-0 llm-node-0-1 llm-node-0-2      the nodes of a job: pods' host names
#
# and prints the commands that make Secrets of them. Again with other nodes, it adds to what is there.
set -eu
umask 077
[ $# -gt 0 ] || { echo "usage: certificates.sh NODE…" >&2; exit 2; }
mkdir -p certificates
cd certificates
issue() { # AUTHORITY INTO ROLE NAME [--host NAME]…
    authority=$1 into=$2
    shift 2
    mkdir -p "$into"
    allstop certs issue "$@" --authority "$authority" --into "$into" >/dev/null
    cp "$authority/ca.pem" "$into/"
}
if [ ! -e made ]; then
    allstop certs init --authority authority >/dev/null
    allstop certs init --authority etcd-authority >/dev/null
    for n in 0 1; do
        issue authority coordinator coordinator allstop-coordinator-$n --host localhost \
            --host allstop-coordinator-$n.allstop-coordinator
    done
    issue etcd-authority coordinator-etcd coordinator client --host allstop-coordinator
    issue etcd-authority etcd coordinator etcd --host localhost --host allstop-etcd-0.allstop-etcd \
        --host allstop-etcd-1.allstop-etcd --host allstop-etcd-2.allstop-etcd
    issue authority operator operator kubernetes
    issue authority nodes viewer nodes
    touch made
fi
for node; do
    [ -e "nodes/shim-$node.pem" ] || issue authority nodes shim "$node"
done
for of in etcd coordinator coordinator-etcd nodes; do
    echo "kubectl -n allstop create secret generic allstop-$of --from-file=certificates/$of"
done
