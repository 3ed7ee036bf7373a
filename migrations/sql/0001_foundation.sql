-- Why: everything that Tidegate keeps lives in two schemas, so that one `drop schema` removes it and no name can
-- collide with the application's.
-- What: the schemas, the schema stamp (L), small helpers that later files call.

create schema if not exists tidegate;
create schema if not exists tidegate_projection;

-- L1: the loader clears `content_hash` before the first file runs and writes all three facts after the last.
create table if not exists tidegate.schema_stamp (
    singleton    boolean primary key default true check (singleton),
    generation   integer not null,
    loader       text not null,
    content_hash bytea check (octet_length(content_hash) = 32),
    stamped_at   timestamptz not null default clock_timestamp()
);

-- Operator acts (Q5) and registrations: who, when, what, with what outcome. Never row values.
create table if not exists tidegate.audit (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    actor      text not null,
    action     text not null,
    subject    jsonb not null default '{}',
    outcome    text not null
);
