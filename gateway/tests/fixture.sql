-- The application of the gateway's tests: its roles, tables and policies, registered and granted. :role and :login are replaced.
do $$ begin
    if not exists (select from pg_roles where rolname = ':role') then create role :role nologin; end if;
    if not exists (select from pg_roles where rolname = ':login') then create role :login login noinherit password 'gate'; end if;
end $$;
grant :role to :login;

create table public.item (
    id bigint primary key, owner text not null, list_id text, title text, body text, meta json, rev int not null default 1,
    tag text unique, parent bigint references public.item, big bigint, short varchar(4), slot int,
    constraint item_title check (title <> 'forbidden'), exclude using btree (slot with =));
alter table public.item enable row level security;
create policy own on public.item using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
create function public.raise() returns trigger language plpgsql as $$
begin
    if new.title like 'raise%' then raise exception 'refused: %', new.title; end if;
    assert (new.title like 'assert%') is not true, new.title;
    return new;
end $$;
create trigger raise before update on public.item for each row execute function public.raise();

create table public.word (id text primary key, note text);
alter table public.word enable row level security;
create policy p on public.word using (true);
create table public.open (id bigint primary key, note text);

create type public.mood as enum ('it''s', 'other');
create domain public.positive as int check (value > 0);
create table public.typed (
    id uuid primary key, b bool, i2 int2, f4 float4, f8 float8, n numeric, u uuid, d date, ts timestamp, tz timestamptz, iv interval,
    by bytea, e public.mood, j json, c char(4), a text[], m int[], dom public.positive);
alter table public.typed enable row level security;
create policy p on public.typed using (true);

grant all on public.item, public.word, public.open, public.typed to :role;
select tidegate.register_table('public.item', '{"write": "enabled", "scopes": [{"name": "user:{owner}"}]}');
select tidegate.register_table('public.word', '{"write": "enabled", "scopes": [{"name": "words"}]}');
select tidegate.register_table('public.open', '{"write": "enabled", "unrestricted": true, "scopes": [{"name": "open"}]}');
select tidegate.register_table('public.typed', '{"write": "enabled", "scopes": [{"name": "typed"}]}');
select tidegate.grant_push(':login', array[':role']::name[]);
