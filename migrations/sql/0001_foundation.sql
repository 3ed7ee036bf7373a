-- Why: everything that Tidegate keeps lives in two schemas, so that one `drop schema` removes it and no name can
-- collide with the application's.
-- What: the schemas, the schema stamp (L), small helpers that later files call.

create schema if not exists tidegate;
create schema if not exists tidegate_projection;

-- L1: the loader clears `content_hash` before the first file runs and writes all three facts after the last. Before the first it
-- also notes in `replaying` which generation it is about to load (L6); where the stamp's table lacks that column, the loader adds it.
create table if not exists tidegate.schema_stamp (
    singleton    boolean primary key default true check (singleton),
    generation   integer not null,
    loader       text not null,
    content_hash bytea check (octet_length(content_hash) = 32),
    stamped_at   timestamptz not null default clock_timestamp(),
    replaying    integer
);

-- L9: a data repair or backfill of generation g stands in its file behind `if tidegate.upgrades_from_before(g)`. It runs while the
-- database is brought to g or beyond from an earlier generation, and in no other replay. A replay that was cut short runs it again.
create or replace function tidegate.upgrades_from_before(generation integer) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select coalesce(current_setting('tidegate.stamped_generation', true)::integer < upgrades_from_before.generation, false)
$f$;

-- Operator acts (Q5) and registrations: who, when, what, with what outcome. Never row values.
create table if not exists tidegate.audit (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    actor      text not null,
    action     text not null,
    subject    jsonb not null default '{}',
    outcome    text not null
);
