-- The demo: a shared board. Two people, ada and ben, may write; one list is public, so that anybody may look.
-- Run once, as one transaction, by `tidegate dev` into a database of its own. Tables and grants are registered before their
-- first rows, so that nothing has to be read again.

create schema demo;

-- Who may see and change which board. Not synced itself: grants read it.
create table demo.board_member (
    id       bigint generated always as identity primary key,
    user_id  text not null,
    board_id bigint not null,
    unique (board_id, user_id)
);

create table demo.list (
    id       bigint primary key,
    board_id bigint not null,
    name     text not null,
    position integer not null,
    public   boolean not null default false
);

create table demo.card (
    id       bigint primary key,
    board_id bigint not null,
    list_id  bigint not null references demo.list (id) on delete cascade,
    title    text not null check (btrim(title) <> '' and length(title) <= 200),
    note     text,
    position integer not null,
    color    text check (color in ('sky', 'mint', 'sand', 'rose', 'iris')),
    -- Counts changes, whoever makes them.
    rev      integer not null default 1,
    -- Follows the list: what is in a public list is public.
    public   boolean not null default false
);
create index on demo.card (list_id);

-- A card belongs to its list's board and is as public as its list, whatever the writer says. Reads `list` with the owner's
-- rights, since the writer sees only boards of which it is a member.
create function demo.follow_list() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $f$
begin
    select l.board_id, l.public into new.board_id, new.public from demo.list l where l.id = new.list_id;
    if tg_op = 'UPDATE' then new.rev := old.rev + 1; end if;
    return new;
end $f$;
create trigger follow_list before insert or update on demo.card for each row execute function demo.follow_list();

create function demo.user_id() returns text
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub'
$f$;

create function demo.is_member(board bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $f$
    select exists (select from demo.board_member m where m.board_id = board and m.user_id = demo.user_id())
$f$;

-- Pushes run as this role, with the token's claims in request.jwt.claims: row-level security decides, as with PostgREST.
do $do$
begin
    if not exists (select from pg_roles where rolname = 'tidegate_demo_writer') then
        create role tidegate_demo_writer nologin;
    end if;
end $do$;
grant usage on schema demo to tidegate_demo_writer;
grant select, insert, update, delete on demo.card to tidegate_demo_writer;
grant execute on function demo.user_id(), demo.is_member(bigint) to tidegate_demo_writer;

alter table demo.card enable row level security;
create policy members on demo.card to tidegate_demo_writer
    using (demo.is_member(board_id)) with check (demo.is_member(board_id));

select tidegate.register_table('demo.list', '{
    "scopes": [{"name": "board:{board_id}"}, {"name": "public", "where": "public"}]
}');
select tidegate.register_table('demo.card', '{
    "write": "enabled",
    "scopes": [{"name": "board:{board_id}"}, {"name": "public", "where": "public"}]
}');
select tidegate.register_grant('{
    "scope": "board:{board_member.board_id}",
    "from": "demo.board_member",
    "where": "board_member.user_id = {subject.id}"
}');
select tidegate.register_grant('{"scope": "public", "anonymous": true}');

insert into demo.board_member (user_id, board_id) values ('ada', 1), ('ben', 1);

insert into demo.list (id, board_id, name, position, public) values
    (1, 1, 'Ideas', 1000, false),
    (2, 1, 'This week', 2000, false),
    (3, 1, 'In review', 3000, false),
    (4, 1, 'Announced', 4000, true);

insert into demo.card (id, board_id, list_id, title, note, position, color) values
    (1, 1, 2, 'Write the release notes', 'Ask Ben for the numbers.', 1000, 'sky'),
    (2, 1, 1, 'Offline mode for the field app', 'Two customers asked for it this month.', 1000, 'mint'),
    (3, 1, 1, 'Shorter sign-up form', null, 2000, null),
    (4, 1, 1, 'Print view of the weekly plan', null, 3000, 'sand'),
    (5, 1, 2, 'Fix the time zone in reminders', 'Seen in Lisbon and Reykjavík.', 2000, 'rose'),
    (6, 1, 2, 'New colours for the map', null, 3000, null),
    (7, 1, 3, 'Import from spreadsheets', 'Waits for a second pair of eyes.', 1000, 'iris'),
    (8, 1, 3, 'Faster search', null, 2000, null),
    (9, 1, 4, 'Shared calendars', 'For everyone since Monday.', 1000, 'mint'),
    (10, 1, 4, 'Dark mode', null, 2000, null);
