//! Plain statements: one row and many, joins, loops, cursors, prepared ones, functions that write while a statement runs.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let mut all = rows();
    all.extend(programs());
    all.extend(functions());
    all.extend(sizes());
    all
}

fn rows() -> Vec<Scenario> {
    vec![
        scenario("one row inserted, updated and deleted")
            .run("insert into item (id) values (1); update item set rev = 2; delete from item")
            .gives(&["item I 1", "item U 1", "item D 1"]),
        scenario("statements of many rows")
            .run("insert into item (id) select generate_series(1, 300); update item set rev = rev + 1; delete from item where id > 3")
            .gives_count(300 + 300 + 297),
        scenario("every row updated three times in one transaction")
            .setup(ROWS)
            .run("update item set rev = 2; update item set rev = 3; update item set rev = 4")
            .gives_count(9),
        scenario("an update that changes nothing")
            .setup(ROWS)
            .run("update item set rev = rev, title = title where id = 1; update list set name = name")
            .gives(&["item U 1"]),
        scenario("statements that find no row")
            .setup(ROWS)
            .run("update item set rev = 2 where id = 9; delete from item where id = 9; insert into item select * from item where id = 9"),
        scenario("an update joined with its own table")
            .setup(ROWS)
            .run("update item a set rev = b.rev + 1 from item b where b.id = a.id - 1")
            .gives(&["item U 2", "item U 3"]),
        scenario("an update joined with many matches for each row")
            .setup(ROWS)
            .run("update item set rev = g from generate_series(5, 9) g")
            .gives(&["item U 1", "item U 2", "item U 3"]),
        scenario("an insert of the table's own rows")
            .setup(ROWS)
            .run("insert into item (id, rev) select id + 10, rev + 1 from item returning id")
            .gives(&["item I 11", "item I 12", "item I 13"]),
        scenario("several columns from a sub-select")
            .setup(ROWS)
            .run("update item i set (title, rev) = (select max(title), count(*)::int from item j where j.id <= i.id)")
            .gives_count(3),
        scenario("a delete joined with another table")
            .setup(ROWS)
            .run("insert into list values ('a'); update item set list_id = 'a' where id < 3; delete from item using list where list_id = list.id returning item.*")
            .gives(&["list I a", "item U 1", "item U 2", "item D 1", "item D 2"]),
        scenario("a recursive query that inserts")
            .run("with recursive n (i) as (select 1 union all select i + 1 from n where i < 5) insert into item (id) select i from n")
            .gives_count(5),
        scenario("one key deleted and inserted five times")
            .setup("insert into item (id) values (1)")
            .run("do $$ begin for n in 1..5 loop delete from item; insert into item (id, rev) values (1, n); end loop; end $$")
            .gives_count(10),
        scenario("one key text in two tables")
            .run("insert into person values (1); insert into item (id) values (1); insert into list values ('1'); update item set rev = 2; update list set name = 'x'; delete from person; delete from item; delete from list")
            .gives(&["person I 1", "item I 1", "list I 1", "item U 1", "list U 1", "person D 1", "item D 1", "list D 1"]),
        scenario("a capture dependency")
            .run("insert into member values (1, 'u', 7); update member set team_id = 8; delete from member")
            .gives(&["member I 1", "member U 1", "member D 1"]),
        scenario("identity columns and overriding")
            .setup("create table public.counted (id bigint generated always as identity primary key, n int); select public.watch('public.counted')")
            .run("insert into counted (n) values (1), (2); insert into counted overriding system value values (9, 3); update counted set n = 4; delete from counted")
            .gives_count(9),
        scenario("a row locked first and then changed")
            .setup(ROWS)
            .run("begin; select * from item where id = 1 for update; select * from item where id = 2 for key share; update item set rev = 2; select * from item for no key update; delete from item where id < 3; commit")
            .gives(&["item U 1", "item U 2", "item U 3", "item D 1", "item D 2"]),
    ]
}

fn programs() -> Vec<Scenario> {
    vec![
        scenario("copy")
            .copy("copy item (id, title) from stdin", "1\ta\n2\tb\n3\tc\n")
            .copy("copy list from stdin (format csv)", "a,x\nb,y\n")
            .gives(&["item I 1", "item I 2", "item I 3", "list I a", "list I b"]),
        scenario("copy into a table with triggers before and after")
            .setup("select app_trigger('rewrite', 'before insert', 'item', 'for each row', 'new.title := new.title || ''!''; return new;'),
                app_trigger('z_again', 'after insert', 'item', 'for each row', 'update item set rev = rev + 1 where id = new.id; return null;')")
            .copy("copy item (id, title) from stdin", "1\ta\n2\tb\n")
            .gives(&["item I 1", "item I 2", "item U 1", "item U 2"]),
        scenario("a prepared statement with a generic plan")
            .setup(ROWS)
            .run("set plan_cache_mode = force_generic_plan; prepare u (int) as update item set rev = rev + $1 where id > $1 - 1;
                execute u(1); execute u(2); execute u(3); execute u(4); deallocate u; reset plan_cache_mode")
            .gives_count(3 + 2 + 1),
        scenario("a prepared statement after its table was altered")
            .setup(ROWS)
            .run("prepare d (int) as delete from item where id = $1; execute d(1); alter table item add column extra int default 5; execute d(2)")
            .gives(&["item D 1", "item D 2"]),
        scenario("a loop over rows that it changes")
            .setup(ROWS)
            .run("do $$ declare r record; begin for r in select * from item order by id desc loop
                update item set rev = r.rev + 1 where id = r.id; insert into item (id) values (r.id + 10); end loop; end $$")
            .gives(&["item U 3", "item I 13", "item U 2", "item I 12", "item U 1", "item I 11"]),
        scenario("a procedure that commits and rolls back in its loop")
            .setup("create procedure public.batches() language plpgsql as $$ begin for n in 1..6 loop
                insert into item (id) values (n); update item set rev = n;
                if n % 2 = 0 then commit; else rollback; end if; end loop; end $$")
            .run("call batches()")
            .gives(&["item I 2", "item U 2", "item I 4", "item U 2", "item U 4", "item I 6", "item U 2", "item U 4", "item U 6"]),
        scenario("a block that commits within its loop, with chained transactions after it")
            .run("do $$ begin for n in 1..3 loop insert into item (id) values (1) on conflict (id) do update set rev = item.rev + 1; commit; end loop; end $$")
            .run("begin isolation level repeatable read; update item set rev = 9; commit and chain; update item set rev = 10; rollback and chain; delete from item; commit")
            .gives(&["item I 1", "item U 1", "item U 1", "item U 1", "item D 1"]),
        scenario("statements that are composed and executed")
            .setup(ROWS)
            .run("do $$ begin for n in 1..3 loop execute format('update item set title = %L where id = $1', n) using n; execute 'delete from item where id = ' || n; end loop; end $$")
            .gives_count(6),
        scenario("cursor: where current of")
            .setup(ROWS)
            .run("begin; declare c cursor for select * from item order by id for update; fetch 1 from c; update item set rev = 2 where current of c;
                fetch 1 from c; delete from item where current of c; fetch 1 from c; update item set rev = 3 where current of c; close c; commit")
            .gives(&["item U 1", "item D 2", "item U 3"]),
        scenario("cursor: a row changed twice where current of")
            .setup(ROWS)
            .run("begin; declare c cursor for select * from item where id = 1; fetch 1 from c; update item set rev = 2 where current of c; update item set rev = 3 where current of c; commit")
            .gives_count(2),
        scenario("cursor: held over the end of its transaction")
            .setup(ROWS)
            .run("begin; declare c cursor with hold for select id from item; update item set rev = 2; commit")
            .run("do $$ begin update item set rev = 3; end $$; fetch all from c; delete from item where id = 1; close c")
            .gives_count(7),
    ]
}

/// Functions that write while the statement that calls them is still at work.
fn functions() -> Vec<Scenario> {
    let meddle = |when: i32, body: &str| {
        format!(
            "create function public.meddle(n bigint) returns int language plpgsql as $$ begin if n = {when} then {body} end if; return 5; end $$"
        )
    };
    vec![
        scenario("a function in an update that writes another table")
            .setup(ROWS)
            .setup("create function public.note(n bigint) returns int language plpgsql as $$ begin insert into list values ('n' || n); return 5; end $$")
            .run("update item set rev = note(id)")
            .gives(&["list I n1", "item U 1", "list I n2", "item U 2", "list I n3", "item U 3"]),
        scenario("a function in an update that changes a row of its table already changed")
            .setup(ROWS)
            .setup(meddle(2, "update item set title = 'm' where id = 1;"))
            .refused("update item set rev = meddle(id)"),
        scenario("a function in an update that deletes a row of its table already changed")
            .setup(ROWS)
            .setup(meddle(2, "delete from item where id = 1;"))
            .refused("update item set rev = meddle(id)"),
        scenario("a function in an update that changes a row still to come")
            .setup(ROWS)
            .setup(meddle(1, "update item set title = 'm' where id = 2;"))
            .fails("27000", "update item set rev = meddle(id)"),
        scenario("a function in an update that changes a row which it does not touch")
            .setup(ROWS)
            .setup(meddle(2, "update item set title = 'm' where id = 3;"))
            .run("update item set rev = meddle(id) where id < 3")
            .gives(&["item U 1", "item U 3", "item U 2"]),
        scenario("a function that changes what returning has just shown")
            .setup(meddle(1, "update item set title = 'm' where id = 1;"))
            .refused("insert into item (id) values (1) returning meddle(id)"),
        scenario("a function in a select that changes each row")
            .setup(ROWS)
            .setup("create function public.touch(n bigint) returns void language sql as 'update item set rev = rev + 1 where id = n'")
            .run("select touch(id), touch(id) from item")
            .gives_count(6),
        scenario("a column default that writes another table")
            .setup("create function public.tracked() returns text language plpgsql as $$ begin insert into person values ((select count(*) from person)); return 'd'; end $$;
                alter table item alter column title set default tracked()")
            .run("insert into item (id) values (1), (2)")
            .gives(&["person I 0", "item I 1", "person I 1", "item I 2"]),
    ]
}

fn sizes() -> Vec<Scenario> {
    let long = "(select string_agg(md5(g::text), '') from generate_series(1, 2000) g)";
    vec![
        scenario("a chain of fifty updates within one page")
            .setup("insert into item (id) values (1)")
            .run("do $$ begin for n in 1..50 loop update item set rev = n; end loop; end $$")
            .gives_count(50),
        scenario("updates that move the row to other pages")
            .setup("insert into item (id) select generate_series(1, 40)")
            .run("update item set title = repeat('long ', 300); update item set title = repeat('longer ', 290); update item set title = ''; delete from item where id % 2 = 0")
            .gives_count(140),
        scenario("a long value that is stored out of line and not changed")
            .run(format!("insert into item (id, title) select 1, {long}; update item set rev = 2; update item set title = title || 'x'; update item set rev = 3; delete from item"))
            .run(format!("insert into item (id, title) select 1, {long}"))
            .run("update item set rev = 2")
            .gives_count(7),
        scenario("a key that is stored out of line")
            .setup("alter table list alter column id set storage external, alter column name set storage plain")
            .run("insert into list select string_agg(md5(g::text), ''), 'a' from generate_series(1, 80) g; update list set name = 'b'; update list set name = 'c'; delete from list")
            .gives_count(4),
        scenario("a key that is compressed beyond what an index holds raw")
            .run("insert into list values (repeat('x', 100000), 'a'), (repeat('x', 100000) || 'y', 'a'); update list set name = 'b'; delete from list")
            .gives_count(6),
    ]
}
