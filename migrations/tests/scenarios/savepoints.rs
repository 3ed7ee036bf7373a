//! F3: what is rolled back takes its fences along, and the order state with them.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("savepoint: rolled back")
            .setup(ROWS)
            .run("begin; update item set rev = 2; savepoint s; update item set rev = 3; delete from item where id = 1; rollback to s; update item set rev = 4; commit")
            .gives_count(6),
        scenario("savepoint: released")
            .setup(ROWS)
            .run("begin; update item set rev = 2; savepoint s; update item set rev = 3; release s; update item set rev = 4; commit")
            .gives_count(9),
        scenario("savepoint: an insert rolled back and made again")
            .run("begin; savepoint s; insert into item (id) values (1); update item set rev = 2; rollback to s; insert into item (id) values (1); rollback to s; insert into item (id) values (1); commit")
            .gives(&["item I 1"]),
        scenario("savepoint: a delete rolled back and made again")
            .setup(ROWS)
            .run("begin; savepoint s; delete from item where id = 1; insert into item (id) values (1); rollback to s; update item set rev = 2 where id = 1; delete from item where id = 1; insert into item (id) values (1); commit")
            .gives(&["item U 1", "item D 1", "item I 1"]),
        scenario("savepoint: nested, inner released, outer rolled back")
            .setup(ROWS)
            .run("begin; update item set rev = 2 where id = 1; savepoint a; update item set rev = 3 where id = 1; savepoint b; delete from item where id = 1; release b;
                insert into item (id) values (1); rollback to a; update item set rev = 4 where id = 1; commit")
            .gives(&["item U 1", "item U 1"]),
        scenario("savepoint: nested, inner rolled back, outer released")
            .setup(ROWS)
            .run("begin; savepoint a; update item set rev = 3 where id = 1; savepoint b; delete from item where id = 1; rollback to b; update item set rev = 4 where id = 1; release a; delete from item where id = 1; commit")
            .gives(&["item U 1", "item U 1", "item D 1"]),
        scenario("savepoint: more than are cached")
            .run("do $$ begin for n in 1..150 loop begin
                    insert into item (id) values (1) on conflict (id) do update set rev = n;
                    if n % 3 = 0 then raise exception 'undo'; end if;
                exception when raise_exception then null; end; end loop; end $$")
            .gives_count(100),
        scenario("savepoint: everything rolled back at the end")
            .setup(ROWS)
            .run("begin; savepoint s; update item set rev = 2; release s; delete from item; rollback")
            .run("update item set rev = 5 where id = 2")
            .gives(&["item U 2"]),
        scenario("savepoint: a refusal rolled back, and the transaction goes on")
            .setup(ROWS)
            .setup("select app_trigger(' early', 'after update', 'item', 'for each row', 'if new.rev = 66 then update item set rev = 67 where id = new.id; end if; return null;')")
            .run("begin; update item set rev = 2 where id = 1; savepoint s")
            .run("do $$ begin update item set rev = 66 where id = 1; exception when sqlstate '27000' then null; end $$")
            .run("rollback to s; update item set rev = 3 where id = 1; commit")
            .gives(&["item U 1", "item U 1"]),
        scenario("savepoint: a key change rolled back, and the transaction goes on")
            .setup(ROWS)
            .run("do $$ begin update item set rev = 2 where id = 1; begin update item set id = 9 where id = 1; exception when others then null; end; delete from item where id = 1; insert into item (id) values (9); end $$")
            .gives(&["item U 1", "item D 1", "item I 9"]),
        scenario("savepoint: a constraint's failure, and the transaction goes on")
            .setup(ROWS)
            .setup("alter table item add check (rev < 100)")
            .run("do $$ begin update item set rev = 2; begin update item set rev = 40 * id + 1; exception when check_violation then null; end; update item set rev = 3; end $$")
            .gives_count(6),
        scenario("savepoint: around a cursor")
            .setup(ROWS)
            .run("begin; declare c cursor for select * from item order by id for update; fetch 1 from c; savepoint s; update item set rev = 2 where current of c; rollback to s;
                update item set rev = 3 where current of c; fetch 1 from c; delete from item where current of c; commit")
            .gives(&["item U 1", "item D 2"]),
        scenario("savepoint: the place of a rolled-back row is taken again")
            .setup(ROWS)
            .run("begin; update item set rev = 2; savepoint s; update item set rev = 3; rollback to s; select count(*) from item; insert into item (id) select generate_series(10, 60); update item set rev = 4; delete from item; commit")
            .gives_count(3 + 51 + 54 + 54),
        scenario("exception block: in a loop")
            .run("do $$ begin insert into item (id) values (1);
                for n in 1..6 loop begin
                    update item set title = n::text; delete from item; insert into item (id) values (1);
                    if n % 2 = 0 then raise exception 'undo'; end if;
                exception when raise_exception then null; end; end loop; end $$")
            .gives_count(1 + 3 * 3),
        scenario("exception block: nested, the inner one caught outside")
            .setup(ROWS)
            .run("do $$ begin update item set rev = 2 where id = 1;
                begin update item set rev = 3 where id = 1; begin delete from item where id = 1; raise exception 'x'; exception when division_by_zero then null; end;
                exception when raise_exception then update item set rev = 4 where id = 1; end;
                update item set rev = 5 where id = 1; end $$")
            .gives(&["item U 1", "item U 1", "item U 1"]),
        scenario("exception block: in a trigger that swallows the refusal")
            .setup(ROWS)
            .setup("select app_trigger(' careful', 'after update', 'item', 'for each row',
                'begin update item set rev = 7 where id = new.id; raise exception ''changed my mind''; exception when others then null; end; return null;')")
            .run("update item set title = 'b' where id = 1")
            .gives(&["item U 1"]),
        scenario("exception block: in a trigger that keeps the nested change and swallows what follows")
            .setup(ROWS)
            .setup("select app_trigger(' eager', 'after update', 'item', 'for each row', 'if new.rev < 7 then update item set rev = 7 where id = new.id; end if; return null;')")
            .run("do $$ begin begin update item set title = 'b' where id = 1; exception when others then null; end; update item set rev = 8 where id = 1; end $$")
            .gives(&["item U 1"]),
        scenario("exception block: in a function called for each row")
            .setup(ROWS)
            .setup("create function public.try(n bigint) returns text language plpgsql as $$ begin
                update item set rev = rev + 1 where id = n; if n = 2 then raise exception 'no'; end if; return 'done'; exception when raise_exception then return 'undone'; end $$")
            .run("select try(id) from item")
            .gives(&["item U 1", "item U 3"]),
    ]
}
