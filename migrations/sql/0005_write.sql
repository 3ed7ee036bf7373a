-- Why: a client's write gets exactly one outcome whatever is resent (V3), and stays bound to its row change until the WAL
-- has brought it round (F5, V2).
-- What: clients, their mutations and outcomes, write fences, cursor keys.

create table if not exists tidegate.client (
    subject     text not null,
    client_id   uuid not null,
    -- The highest number that has run or was settled; the next one is the only one that may run.
    last_number bigint not null default 0,
    -- Everything at or below was acknowledged by the client; outcomes there may be pruned.
    settled     bigint not null default 0,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (subject, client_id),
    check (settled <= last_number)
);

-- One record per mutation, written by the transaction that ran it, or, for a refusal, by one of its own.
create table if not exists tidegate.client_mutation (
    mutation_id bigint generated always as identity primary key,
    subject     text not null,
    client_id   uuid not null,
    number      bigint not null,
    -- SHA-256 over content, batch id and the batch's membership.
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    status      text not null check (status in ('accepted', 'conflict', 'rejected', 'discarded')),
    code        text,
    message     text check (octet_length(message) <= 1000),
    -- The version that it produced: what a later `{after: number}` means.
    version     uuid,
    -- The transaction that ran it: a fence honours a mutation id only in that transaction.
    xid         xid8 not null default pg_current_xact_id(),
    at          timestamptz not null default clock_timestamp(),
    unique (subject, client_id, number)
);

-- F5: written by the fence itself, in the transaction of the row change. Reconciled exactly once by materialization (F8), or
-- covered by an activated baseline (B5).
create table if not exists tidegate.write_fence (
    fence_id    uuid primary key,
    mutation_id bigint not null,
    subject     text not null,
    client_id   uuid not null,
    number      bigint not null,
    relation_id integer not null,
    key         text not null,
    version     uuid not null,
    xid         xid8 not null default pg_current_xact_id(),
    generation  integer,
    -- Source transaction that materialized it; null while pending.
    materialized_commit_lsn pg_lsn,
    -- The reset whose activated baseline covers it instead.
    covered_by  uuid
);
-- Rides: V2's gate, one query for all waiting sessions.
create index if not exists write_fence_pending on tidegate.write_fence (subject, client_id, number)
    where materialized_commit_lsn is null and covered_by is null;
-- Rides: the tail, which announces `materialized` with the transaction that brought it (V6).
create index if not exists write_fence_materialized on tidegate.write_fence (generation, materialized_commit_lsn)
    where materialized_commit_lsn is not null;
-- Rides: settling an awaited number, pruning.
create index if not exists write_fence_by_client on tidegate.write_fence (subject, client_id, number);

-- P9: keys that authenticate cursors. The newest signs; older ones verify until the retention has passed.
create table if not exists tidegate.cursor_key (
    key_id     integer generated always as identity primary key,
    secret     bytea not null check (octet_length(secret) = 32),
    created_at timestamptz not null default clock_timestamp()
);
insert into tidegate.cursor_key (secret)
select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
where not exists (select from tidegate.cursor_key);
