#!/usr/bin/env python3
"""A complete Tidegate client, written from PROTOCOL.md alone.

Subscribes to a scope, verifies its digest at every step, and, if asked, updates one row and waits until the change has
come round. Needs `pip install msgpack websockets`.

    client.py ws://127.0.0.1:8787 SCOPE [--token T] [--set TABLE KEY COLUMN VALUE] [--steps N]
"""
import argparse, asyncio, hashlib, struct, sys, uuid
import msgpack, websockets

UPSERT, DELETE = 1, 2


def row_digest(table, key, version, row):
    """First 16 bytes of SHA-256 over table, key, version and the row's bytes as received, as a number."""
    k = b"\x01" + struct.pack(">q", key) if isinstance(key, int) else b"\x02" + key.encode()
    data = struct.pack(">iI", table, len(k)) + k + version + struct.pack(">I", len(row)) + row
    return int.from_bytes(hashlib.sha256(data).digest()[:16], "big")


class Scope:
    """Rows of one scope by (table, key), and the sum of their digests modulo 2**128."""

    def __init__(self):
        self.rows, self.digest = {}, 0

    def remove(self, table, key):
        old = self.rows.pop((table, key), None)
        if old:
            self.digest = (self.digest - row_digest(table, key, *old)) % (1 << 128)

    def put(self, table, key, version, row):
        self.remove(table, key)
        self.rows[table, key] = (version, row)
        self.digest = (self.digest + row_digest(table, key, version, row)) % (1 << 128)

    def apply(self, page):
        for _tx, effects in page["txs"]:
            for op, table, key, version, row in effects:
                self.put(table, key, version, row) if op == UPSERT else self.remove(table, key)

    def verify(self, frame):
        if (len(self.rows), self.digest.to_bytes(16, "big")) != (frame["count"], frame["digest"]):
            sys.exit("digest mismatch: what we hold is not what the server has")


class Client:
    def __init__(self, socket, arguments):
        self.socket, self.arguments = socket, arguments
        self.scope, self.staged, self.joined, self.number = Scope(), [], False, None
        self.tables, self.sv, self.steps = {}, 0, 0
        self.awaited = {"outcome", "materialized"} if arguments.set else set()

    async def send(self, **frame):
        await self.socket.send(msgpack.packb(frame))

    async def frames(self):
        async for data in self.socket:
            yield msgpack.unpackb(data, strict_map_key=False)

    def learn(self, sv, manifest):
        self.sv = sv
        if manifest:
            self.tables.update({table["name"]: table for table in manifest["tables"]})

    def step(self):
        """A cut, a page that is its own cut, or a join: apply what is staged, verify, show."""
        for page in self.staged:
            self.scope.apply(page)
            self.scope.verify(page)
        self.staged.clear()
        self.steps += 1
        print(f"step {self.steps}: {len(self.scope.rows)} rows, digest verified")

    async def push(self, table_name, key, column, value):
        table = self.tables.get(table_name) or sys.exit(f"no table {table_name}; there are {', '.join(self.tables)}")
        kind = dict((name, wire) for name, wire, _nullable in table["cols"])
        parse = lambda name, text: int(text) if kind[name] in ("int", "int64") else text
        key = parse(table["cols"][table["key"]][0], key)
        held = self.scope.rows.get((table["id"], key))
        await self.send(t="push", ref=2, batch=uuid.uuid4().bytes, atomic=False, sv=self.sv, acked=0, mutations=[{
            "n": 1, "table": table["id"], "op": "update", "key": key, "base": held and held[0],
            "cols": {column: parse(column, value)}}])

    async def run(self):
        a = self.arguments
        hello = {"await": [], "token": a.token, "user": None, "sv": None}
        await self.send(t="hello", v=[3], client=uuid.uuid4().bytes, new=True, acked=0, **hello)
        async for frame in self.frames():
            kind = frame["t"]
            if kind == "welcome":
                self.learn(frame["sv"], frame.get("schema"))
                await self.send(t="subscribe", ref=1, kind="scope", name=a.scope, cursor=None)
            elif kind == "schema":
                self.learn(frame["sv"], frame["schema"])
            elif kind == "subscribed":
                self.number, self.joined, self.scope, self.staged = frame["scope"], False, Scope(), []
                print(f"subscribed to {frame['name']}: {frame['mode']} ({frame.get('reason')})")
            elif kind == "rebuild":
                for row in frame["rows"]:
                    self.scope.put(*row)
            elif kind == "page":
                if not self.joined:
                    # Rebuild pages were read at different positions: effects make them converge, `joined` proves it.
                    self.scope.apply(frame)
                else:
                    self.staged.append(frame)
                    if frame["fin"]:
                        self.step()
            elif kind == "cut":
                self.step()
            elif kind == "joined":
                self.scope.verify(frame)
                self.joined = True
                self.step()
                if a.set:
                    await self.push(*a.set)
            elif kind == "outcome":
                self.awaited.discard("outcome")
                for result in frame["results"]:
                    print(f"mutation {result['n']}: {result['status']} {result.get('code') or ''}")
                    if result["status"] != "accepted":
                        return 1
            elif kind == "materialized":
                self.awaited.discard("materialized")
                print(f"materialized: {frame['numbers']}")
                continue  # The step that shows it follows directly.
            elif kind in ("error", "bye"):
                print(f"{kind}: {frame.get('code') or frame.get('reason')}")
                return 1
            if self.steps >= a.steps and not self.awaited:
                return 0
        return 1


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("scope")
    parser.add_argument("--token")
    parser.add_argument("--set", nargs=4, metavar=("TABLE", "KEY", "COLUMN", "VALUE"))
    parser.add_argument("--steps", type=int, default=1, help="leave after this many steps")
    arguments = parser.parse_args()
    async with websockets.connect(arguments.url + "/v3/socket", subprotocols=["tidegate.v3.msgpack"], max_size=64 << 20) as socket:
        return await Client(socket, arguments).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
