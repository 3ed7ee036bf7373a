# Stops and removes a shared test server once no process has used it for a while.
# Run as: sh -c TEXT tidegate-janitor SERVER_PID CLUSTER_FOLDER HOLDERS_FOLDER IDLE_SECONDS
# Each user keeps a file named by its process id among the holders. Removing that folder succeeds only while it is
# empty, in one step: after it nobody can join, and whoever wants a server waits for our end and makes a new one.
pid=$1 cluster=$2 data=$2/data holders=$3 limit=$4
idle=0
trap '' INT HUP TERM

# A process that has ended and was not waited for yet has no working folder.
alive() {
    kill -0 "$1" 2>/dev/null || return 1
    [ ! -e /proc/self/cwd ] || readlink "/proc/$1/cwd" >/dev/null
}

ours() {
    kill -0 "$pid" 2>/dev/null || return 1
    [ "$(head -n 1 "$data/postmaster.pid" 2>/dev/null)" = "$pid" ] || return 1
    [ ! -e /proc/self/cwd ] || [ "$(readlink "/proc/$pid/cwd")" = "$data" ]
}

while ours; do
    used=
    for holder in "$holders"/*; do
        [ -e "$holder" ] || continue
        used=yes
        alive "${holder##*/}" || rm -f -- "$holder"
    done
    if [ -n "$used" ]; then idle=0; else idle=$((idle + 1)); fi
    if [ "$idle" -gt "$limit" ] && rmdir -- "$holders"; then
        kill -QUIT "$pid"
        waits=0
        while ours; do
            waits=$((waits + 1))
            if [ "$waits" -eq 20 ]; then kill -KILL "$pid"; fi
            sleep 1
        done
        rm -rf -- "$cluster"
        exit 0
    fi
    sleep 1
done
