-- Why: what PostgreSQL really sends is the best table of cases for the decoder and everything after it.
-- What: the application's tables, before the recording starts; then changes.sql. record.sql says how to run the three.

create table public.list (id text primary key, name text);
create table public.item (id bigint primary key, list_id text references public.list(id) on delete cascade,
    title text, body text, meta json, rev int not null default 1, internal int);
alter table public.item alter body set storage external;
create table public.odd (id uuid primary key, n numeric, f8 float8, f4 float4, d date, t timestamp, tz timestamptz,
    i interval, b bytea, ok boolean, tags text[], jb jsonb);
create table public.member (id int primary key, list_id text, user_id text, active boolean);
create table public.outside (id int);
create function public.bump() returns trigger language plpgsql as $f$
begin update public.item set rev = rev + 1 where id = new.id; return null; end $f$;
create trigger a_bump after insert on public.item for each row when (new.title = 'bump') execute function public.bump();
create function public.note() returns trigger language plpgsql as $f$
begin update public.list set name = name || '!' where id = new.list_id; return null; end $f$;
create constraint trigger late after insert on public.item deferrable initially deferred for each row when (new.title = 'late')
    execute function public.note();
select tidegate.register_table('public.list', '{"scopes": [{"name": "list:{id}"}]}');
