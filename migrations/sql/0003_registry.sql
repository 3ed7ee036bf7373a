-- Why: every process must agree on which tables, columns, rules and grants are in force at each point of the stream.
-- What: relations, grant rules, and the numbered registry generations, each an immutable, self-contained snapshot.

-- G1: `relation_id` is the immutable logical id, never reused; `table_id` is the id that clients see (F10: never reused).
create table if not exists tidegate.relation (
    relation_id  integer generated always as identity primary key,
    table_id     integer unique,
    kind         text not null check (kind in ('synced', 'capture_dependency')),
    schema_name  name not null,
    table_name   name not null,
    relation_oid oid not null,
    filenode     oid not null,
    key_column   name not null,
    key_type     text not null check (key_type in ('string', 'int', 'int64')),
    state        text not null check (state in ('pending', 'active', 'removed')),
    -- As given, after defaults were filled in.
    definition   jsonb not null,
    -- What registry_generation.snapshot carries for this relation.
    resolved     jsonb not null,
    registered_at timestamptz not null default clock_timestamp(),
    check ((kind = 'synced') = (table_id is not null))
);
create unique index if not exists relation_by_oid on tidegate.relation (relation_oid) where state <> 'removed';
create unique index if not exists relation_by_name on tidegate.relation (schema_name, table_name) where state <> 'removed';
create sequence if not exists tidegate.table_id as integer owned by tidegate.relation.table_id;
create sequence if not exists tidegate.rule_id as integer;

create table if not exists tidegate.grant_rule (
    grant_id      integer generated always as identity primary key,
    definition    jsonb not null unique,
    resolved      jsonb not null,
    state         text not null check (state in ('active', 'removed')),
    registered_at timestamptz not null default clock_timestamp()
);

-- G2: a generation is written, complete, by the transaction that emits its activation message. The worker records where
-- in the stream it became active.
create table if not exists tidegate.registry_generation (
    id                     integer primary key,
    snapshot               jsonb not null,
    created_by_xid         xid8 not null default pg_current_xact_id(),
    created_at             timestamptz not null default clock_timestamp()
);
insert into tidegate.registry_generation (id, snapshot)
values (0, '{"generation": 0, "relations": [], "grants": []}') on conflict do nothing;

create table if not exists tidegate.registry_activation (
    stream_generation      integer not null,
    registry_generation    integer not null references tidegate.registry_generation (id),
    -- Where it takes effect; null: it was in force in the baseline's snapshot.
    commit_lsn             pg_lsn,
    -- Events of that transaction with an ordinal below this one use the generation before.
    first_event_ordinal    bigint,
    primary key (stream_generation, registry_generation)
);
