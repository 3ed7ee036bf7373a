# Stops a server whose parent has died, however it died: the only write end of the pipe on standard input
# belongs to the parent. Run as: sh -c TEXT tidegate-watchdog DATA_FOLDER SIGNAL [FOLDER_TO_REMOVE]
# The parent writes the server's process id, and "done" when it has stopped the server by itself.
data=$1 signal=$2 remove=${3-}
pid=
trap '' INT HUP TERM

while IFS= read -r line; do
    case $line in
        done) exit 0 ;;
        *) pid=$line ;;
    esac
done

# Still there, and still the server of this folder, not another process that was given its number?
ours() {
    kill -0 "$pid" 2>/dev/null || return 1
    [ "$(head -n 1 "$data/postmaster.pid" 2>/dev/null)" = "$pid" ] || return 1
    [ ! -e /proc/self/cwd ] || [ "$(readlink "/proc/$pid/cwd")" = "$data" ]
}

pause() { sleep 0.1 2>/dev/null || sleep 1; }

# The parent may have died before it could tell the number, or before the server had written its file.
tries=0
while [ "$tries" -lt 20 ]; do
    [ -n "$pid" ] || pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null)
    if [ -n "$pid" ]; then
        ours && break
        kill -0 "$pid" 2>/dev/null || break
    fi
    tries=$((tries + 1))
    pause
done

if [ -n "$pid" ] && ours; then
    kill -"$signal" "$pid"
    # A fast shutdown waits for ever behind a replication client that never acknowledges.
    waits=0
    while ours; do
        waits=$((waits + 1))
        if [ "$waits" -eq 150 ]; then kill -QUIT "$pid"; fi
        if [ "$waits" -eq 300 ]; then kill -KILL "$pid"; fi
        if [ "$waits" -gt 400 ]; then break; fi
        pause
    done
fi

if [ -n "$remove" ]; then rm -rf -- "$remove"; fi
