-- Why: gateways deliver from an ordered log, so what a client sees is always durable (V1) and can be read again.
-- What: effects, grant changes, and the projected states that they come from.

-- P5, P6: the full event identity and the delivery position of each effect, and the scope's digest and row count after
-- it, so that a page may end anywhere and be verified.
create table if not exists tidegate.effect (
    generation     integer not null,
    scope_id       bigint not null,
    commit_lsn     pg_lsn not null,
    event_ordinal  bigint not null,
    effect_ordinal integer not null,
    -- 1 upsert, 2 delete ("leaves this scope").
    op             smallint not null check (op in (1, 2)),
    table_id       integer not null,
    -- The key in its wire form (one MessagePack value).
    key            bytea not null,
    version        uuid not null,
    -- The row in its wire form; null for a delete.
    row            bytea,
    -- Registry generation under which `row` was encoded: the wire's `sv`.
    schema_version integer not null,
    digest_after   bytea not null check (octet_length(digest_after) = 16),
    count_after    bigint not null,
    primary key (scope_id, commit_lsn, event_ordinal, effect_ordinal),
    check ((op = 1) = (row is not null))
);
-- Rides: the tail, which reads whole transactions of all scopes, and parts of large ones; retention.
drop index if exists tidegate.effect_by_commit;
create index if not exists effect_in_order on tidegate.effect (generation, commit_lsn, scope_id, event_ordinal, effect_ordinal);
-- Rows are MessagePack of mostly short values: compressing them costs more processor time than it saves disk.
alter table tidegate.effect alter column row set storage external;

-- V7: a subject's scopes change at positions too. One row per net change, materialized with its transaction.
create table if not exists tidegate.grant_effect (
    generation integer not null,
    commit_lsn pg_lsn not null,
    ordinal    integer not null,
    -- 1 granted, 2 revoked.
    op         smallint not null check (op in (1, 2)),
    subject    text not null,
    scope      text not null,
    primary key (generation, commit_lsn, ordinal)
);

-- How far effects have been removed. A reader of whole transactions that stands before has missed some; one of a single scope asks
-- the scope's floor.
create table if not exists tidegate.retention (
    generation      integer primary key references tidegate.stream_generation (id),
    removed_through pg_lsn not null
) with (fillfactor = 50);

create sequence if not exists tidegate.scope_id;
create sequence if not exists tidegate.state_id as integer;

-- A projected state is a set of tables of its own, so that a reset or a bootstrap builds one beside the active one and
-- activation moves a pointer. `s<state>_scope`: scopes; `s<state>_scope_row`: edges; `s<state>_subject_grant`: what
-- subjects may subscribe to; `s<state>_p<relation>`: the commit-ordered copy of a relation's rows (R7).
create or replace function tidegate.create_state(state_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    execute format($ddl$
        create table tidegate_projection.s%1$s_scope (
            scope_id    bigint primary key,
            -- Unique through its SHA-256, so that no name is too long for the index.
            name_hash   bytea not null unique check (octet_length(name_hash) = 32),
            name        text not null,
            row_count   bigint not null,
            digest      bytea not null check (octet_length(digest) = 16),
            -- Position of its last effect; null when the scope's content came with the baseline.
            tail_commit_lsn     pg_lsn,
            tail_event_ordinal  bigint,
            tail_effect_ordinal integer,
            -- Position of its last removed effect, with the row count and digest there; null when none was removed.
            floor_commit_lsn     pg_lsn,
            floor_event_ordinal  bigint,
            floor_effect_ordinal integer,
            floor_row_count      bigint,
            floor_digest         bytea
        ) with (fillfactor = 70);
        create table tidegate_projection.s%1$s_scope_row (
            scope_id    bigint not null,
            relation_id integer not null,
            key_index   bytea not null,
            primary key (scope_id, relation_id, key_index)
        );
        create table tidegate_projection.s%1$s_subject_grant (
            subject_hash bytea not null check (octet_length(subject_hash) = 32),
            scope_hash   bytea not null check (octet_length(scope_hash) = 32),
            subject      text not null,
            scope        text not null,
            -- How many rows grant it; the pair is gone when none does.
            row_count    bigint not null check (row_count > 0),
            -- Transaction end from which the pair has held without a gap; null: since the baseline.
            since_commit_lsn pg_lsn,
            primary key (subject_hash, scope_hash)
        ) with (fillfactor = 70);
        $ddl$, state_id);
end $f$;

-- Projection of one relation in one state. `scope_ids` are the row's current edges, `grants` its current
-- (subject, scope) pairs as a jsonb array of two-element arrays, so that one look-up brings all old state of a row.
create or replace function tidegate.create_projection(state_id integer, relation_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    execute format($ddl$
        create table if not exists tidegate_projection.s%1$s_p%2$s (
            -- tidegate-model's RowKey::index_bytes: bounded, so that no key is too long for this index.
            key_index bytea primary key,
            version   uuid not null,
            row       bytea not null,
            digest    bytea not null check (octet_length(digest) = 16),
            scope_ids bigint[] not null,
            grants    jsonb
        ) with (fillfactor = 80);
        alter table tidegate_projection.s%1$s_p%2$s alter column row set storage external;
        $ddl$, state_id, relation_id);
end $f$;

create or replace function tidegate.drop_state(state_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare t name;
begin
    for t in select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where n.nspname = 'tidegate_projection' and c.relkind = 'r' and c.relname ~ ('^s' || drop_state.state_id || '_')
    loop execute format('drop table tidegate_projection.%I', t); end loop;
end $f$;
