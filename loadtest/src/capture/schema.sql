-- Table of `loadtest capture`. {rows} rows exist at the first start; {definition} says which scopes a row is in.
create schema loadtest;
create table loadtest.change (
    id       bigint primary key,
    list_no  int not null,
    owner_no int not null,
    state_no int not null,
    counter  bigint not null default 0,
    title    text not null,
    amount   numeric(12, 2),
    made_at  timestamptz not null
) with (fillfactor = 70);
create function loadtest.rows(first bigint, last bigint) returns setof loadtest.change language sql as $f$
    select g, g % 100, g / 7 % 100, g % 10, 0, 'row number ' || g || ' ' || repeat('x', 90), g % 9973 * 0.37,
           timestamptz '2026-01-01' + g % 9973 * interval '1 second'
    from generate_series(first, last) g
$f$;
insert into loadtest.change select * from loadtest.rows(1, {rows});
-- Rows that inserts add, and deletes remove again, oldest first. Some are there already: no transaction deletes what it inserted.
insert into loadtest.change select * from loadtest.rows(1000000001, 1000005000);
create sequence loadtest.next_id start 1000005001;
create sequence loadtest.next_gone start 1000000001;

create procedure loadtest.commit_inserts(transactions int) language plpgsql as $f$
declare first bigint;
begin
    for n in 1..transactions loop
        first := nextval('loadtest.next_id');
        insert into loadtest.change select * from loadtest.rows(first, first + 999);
        perform setval('loadtest.next_id', first + 999);
        commit;
    end loop;
end $f$;

create procedure loadtest.commit_updates(transactions int) language plpgsql as $f$
declare first bigint := 0;
begin
    for n in 1..transactions loop
        update loadtest.change set counter = counter + 1 where id > first and id <= first + 1000;
        first := (first + 1000) % {rows};
        commit;
    end loop;
end $f$;

create procedure loadtest.commit_mixed(transactions int) language plpgsql as $f$
declare first bigint := 0; new bigint; gone bigint;
begin
    for n in 1..transactions loop
        update loadtest.change set counter = counter + 1, list_no = case when id % 10 = 0 then (list_no + 1) % 100 else list_no end
        where id > first and id <= first + 500;
        first := (first + 500) % {rows};
        new := nextval('loadtest.next_id');
        insert into loadtest.change select * from loadtest.rows(new, new + 249);
        perform setval('loadtest.next_id', new + 249);
        gone := nextval('loadtest.next_gone');
        delete from loadtest.change where id between gone and gone + 249;
        perform setval('loadtest.next_gone', gone + 249);
        commit;
    end loop;
end $f$;

select tidegate.register_table('loadtest.change', '{definition}');
select tidegate.register_grant('{"scope": "list:0", "anonymous": true}');
