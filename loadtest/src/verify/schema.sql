-- Tables of `loadtest verify`: integer and text keys, a null scope, two scopes sharing a row, values that go out of line.
-- Invariants that each client checks at each step: the balances of all items sum to zero, and an item is in one list.
create schema loadtest;
create table loadtest.item (
    id      bigint primary key,
    list_no int,
    title   text not null default '',
    balance bigint not null default 0,
    hot     boolean not null default false,
    big     text
);
create table loadtest.note (
    id      text primary key,
    list_no int not null,
    body    text
);
-- Written by the trigger of another table: its fence comes nested inside of a statement.
create table loadtest.tally (
    id      int primary key,
    changes bigint not null
);
create function loadtest.count_change() returns trigger language plpgsql as $f$
begin
    update loadtest.tally set changes = changes + 1 where id = 1 + (abs(new.id) % 8)::int;
    return null;
end $f$;
create trigger count_change after insert on loadtest.item for each row execute function loadtest.count_change();
insert into loadtest.item (id, list_no, title, balance, hot, big)
    select g, g % 10, 'item ' || g, case when g % 2 = 0 then 10 else -10 end, g % 7 = 0,
           case when g % 50 = 0 then (select string_agg(md5((g * 1000 + n)::text), '') from generate_series(1, 200) n) end
    from generate_series(1, 2000) g;
insert into loadtest.note select 'note ' || g, g % 10, 'body ' || g from generate_series(1, 200) g;
insert into loadtest.tally select g, 0 from generate_series(1, 8) g;
grant usage on schema loadtest to loadtest_writer;
grant select, insert, update, delete on all tables in schema loadtest to loadtest_writer;

select tidegate.register_table('loadtest.item', '{"write": "enabled", "unrestricted": true,
    "scopes": [{"name": "list:{list_no}"}, {"name": "hot", "where": "hot and list_no is not null"}]}');
select tidegate.register_table('loadtest.note', '{"scopes": [{"name": "list:{list_no}"}]}');
select tidegate.register_table('loadtest.tally', '{"scopes": [{"name": "tally"}]}');
select tidegate.register_grant('{"scope": "hot", "anonymous": true}');
select tidegate.register_grant('{"scope": "tally", "anonymous": true}');
select tidegate.register_grant(jsonb_build_object('scope', 'list:' || g, 'anonymous', true)) from generate_series(0, 9) g;
