-- Why: the lineage of the stream and how far it is durable decide what may be acknowledged (A) and what a cursor
-- means (P); both must survive every crash.
-- What: generations, the progress row, the worker's heartbeat, replay identities, poison, reset records.

-- One row per stream generation (P1). `id` is the compact form that other tables carry; `token` is the opaque identity.
create table if not exists tidegate.stream_generation (
    id                integer primary key,
    token             uuid not null unique default gen_random_uuid(),
    reset_id          uuid not null,
    -- The projected state (see tidegate.create_state) that this generation reads and writes.
    state_id          integer not null unique,
    slot_name         name not null,
    -- Lower bound of A8 and H9: the candidate slot's consistent point.
    consistent_lsn    pg_lsn not null,
    -- End of the activation barrier: what `generation_start` stands for ends here (B9).
    barrier_end_lsn   pg_lsn not null,
    system_identifier text not null,
    timeline          integer not null,
    database_oid      oid not null,
    activated_at      timestamptz not null default clock_timestamp()
);

-- A1: the durable boundaries of the active generation; the pointer to the active slot and state (B9).
create table if not exists tidegate.progress (
    singleton               boolean primary key default true check (singleton),
    generation              integer not null references tidegate.stream_generation (id),
    -- Every source transaction whose commit record starts before it is completely durable.
    processed_end_lsn       pg_lsn not null,
    -- Recorded only up to a slot position read back from the server (A4). Null counts as the generation start.
    acknowledged_end_lsn    pg_lsn,
    -- High-water mark (P7): the last materialized transaction; null before the first.
    materialized_commit_lsn pg_lsn,
    materialized_end_lsn    pg_lsn,
    -- The registry generation in force at the end of what is processed (G2).
    registry_generation     integer not null,
    check (acknowledged_end_lsn is null or acknowledged_end_lsn <= processed_end_lsn),
    check (materialized_end_lsn is null or materialized_end_lsn <= processed_end_lsn)
) with (fillfactor = 50);

-- Exactly one worker owns the stream: its epoch is compared, under a row lock, inside each materialization transaction.
create table if not exists tidegate.worker (
    singleton        boolean primary key default true check (singleton),
    epoch            bigint not null default 0,
    worker_id        uuid,
    -- Server process ids of the owner's connections, so that a takeover can end them.
    backend_pids     integer[] not null default '{}',
    walsender_pid    integer,
    claimed_at       timestamptz
) with (fillfactor = 50);
insert into tidegate.worker default values on conflict do nothing;

-- H3. Unlogged: a heartbeat writes no WAL (A10), and losing it in a crash rightly reads as "unknown, not ready".
create unlogged table if not exists tidegate.worker_heartbeat (
    singleton               boolean primary key default true check (singleton),
    epoch                   bigint not null,
    beat_at                 timestamptz not null,
    -- starting | streaming | retrying | blocked | stopped
    state                   text not null,
    -- Named reason while retrying or blocked; never row values.
    reason                  text,
    since                   timestamptz not null,
    processed_end_lsn       pg_lsn,
    materialized_commit_lsn pg_lsn,
    registry_generation     integer,
    -- Commit time of the newest source transaction received but not yet durable; null when none is in flight.
    oldest_pending_commit_at timestamptz
) with (fillfactor = 50);

-- R1, R3, R4: one record per delivered source transaction, with its packed event manifest.
create table if not exists tidegate.source_transaction (
    generation    integer not null,
    commit_lsn    pg_lsn not null,
    end_lsn       pg_lsn not null,
    xid           bigint not null,
    committed_at  timestamptz not null,
    -- Row changes in decoded order before any filtering (P4).
    event_count   bigint not null,
    effect_count  bigint not null,
    -- Wire bytes of all its effects, so that a reader can bound what it asks for.
    effect_bytes  bigint not null,
    -- Ordinals, relations and operations of its applicable events, run-length packed, with a digest of their content.
    manifest      bytea not null,
    primary key (generation, commit_lsn)
);

-- Q1: a blocking failure. Bounded and redacted: no row values, no DETAIL.
create table if not exists tidegate.poison (
    id            bigint generated always as identity primary key,
    generation    integer not null,
    commit_lsn    pg_lsn not null,
    end_lsn       pg_lsn,
    failure_class text not null check (octet_length(failure_class) <= 64),
    -- A sentence composed of our own words, names of relations, counts and positions.
    explanation   text not null check (octet_length(explanation) <= 1000),
    sqlstate      text check (octet_length(sqlstate) = 5),
    relation_id   integer,
    -- Whether `retry` may clear it; a decoded TRUNCATE may not (K3).
    retryable     boolean not null default true,
    attempts      integer not null default 1,
    first_at      timestamptz not null default clock_timestamp(),
    last_at       timestamptz not null default clock_timestamp(),
    -- active: blocks. retrying: an operator asked for one more try. resolved: materialized by a retry, or left behind by a reset.
    status        text not null default 'active' check (status in ('active', 'retrying', 'resolved')),
    resolved_at   timestamptz
);
create unique index if not exists poison_one_blocking on tidegate.poison ((true)) where status in ('active', 'retrying');

-- B12: a first start, a reset or a bootstrap, in its phases. Recorded before its slot is created, so that every slot of
-- ours can be swept.
create table if not exists tidegate.stream_reset (
    reset_id          uuid primary key,
    kind              text not null check (kind in ('first_start', 'reset', 'bootstrap')),
    -- recorded -> slot_created -> staged -> caught_up -> verified -> activated -> cleaned, or discarded
    phase             text not null check (phase in
                          ('recorded', 'slot_created', 'staged', 'caught_up', 'verified', 'activated', 'cleaned', 'discarded')),
    slot_name         name not null unique,
    database_name     name not null,
    plugin            name not null,
    state_id          integer not null unique,
    consistent_lsn    pg_lsn,
    snapshot_xmin     xid8,
    snapshot_xmax     xid8,
    registry_generation integer,
    -- Catch-up position of the staged state: as progress.processed_end_lsn, for the candidate.
    caught_up_lsn     pg_lsn,
    barrier_nonce     uuid,
    barrier_commit_lsn pg_lsn,
    barrier_end_lsn   pg_lsn,
    reason            text not null default '',
    error             text,
    started_at        timestamptz not null default clock_timestamp(),
    phase_at          timestamptz not null default clock_timestamp()
);

-- B5: fences that a snapshot covers.
create table if not exists tidegate.reset_coverage (
    fence_id   uuid primary key,
    reset_id   uuid not null references tidegate.stream_reset (reset_id),
    slot_name  name not null,
    generation integer not null,
    consistent_lsn pg_lsn not null
);
