//! Writes that name something other than the table: views, rules, INSTEAD OF triggers, functions.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let view = "create view public.open_items as select id, title, rev from item where rev < 100";
    vec![
        scenario("view: one that can be updated")
            .setup(view)
            .run("insert into open_items (id, title, rev) values (1, 'a', 1), (2, 'b', 1); update open_items set rev = rev + 1; delete from open_items where id = 1")
            .gives(&["item I 1", "item I 2", "item U 1", "item U 2", "item D 1"]),
        scenario("view: with check option")
            .setup(format!("{view} with check option"))
            .run("insert into open_items (id, rev) values (1, 1); do $$ begin update open_items set rev = 200; exception when with_check_option_violation then null; end $$; update open_items set rev = 5")
            .gives(&["item I 1", "item U 1"]),
        scenario("view: of a view, with on conflict")
            .setup(format!("{view}; create view public.inner_items as select id, rev from open_items where id > 0"))
            .setup(ROWS)
            .run("insert into inner_items values (1, 2), (9, 2) on conflict (id) do update set rev = excluded.rev; update inner_items set rev = 3 where id > 1")
            .gives(&["item U 1", "item I 9", "item U 2", "item U 3", "item U 9"]),
        scenario("view: a key that changes")
            .setup(view)
            .setup(ROWS)
            .refused_key("update open_items set id = id + 10"),
        scenario("view: merged into")
            .since(17)
            .setup(view)
            .setup(ROWS)
            .run("merge into open_items v using (values (1), (9)) s (id) on v.id = s.id when matched then update set rev = 7 when not matched then insert (id, rev) values (s.id, 1)")
            .gives(&["item U 1", "item I 9"]),
        scenario("instead of: triggers that write two tables")
            .setup("create view public.pairs as select i.id, i.rev, l.name from item i join list l on l.id = i.list_id;
                create function public.pairs_write() returns trigger language plpgsql as $$ begin
                    if tg_op = 'DELETE' then delete from item where id = old.id; delete from list where id = old.id::text; return old; end if;
                    insert into list values (new.id::text, new.name) on conflict (id) do update set name = excluded.name;
                    insert into item (id, list_id, rev) values (new.id, new.id::text, new.rev) on conflict (id) do update set rev = excluded.rev;
                    update item set rev = rev + 1 where id = new.id; return new; end $$;
                create trigger pairs_write instead of insert or update or delete on pairs for each row execute function pairs_write()")
            .run("insert into pairs values (1, 1, 'a'), (2, 1, 'b'); update pairs set name = 'c' where id = 1; delete from pairs")
            .gives_count(2 * 3 + 3 + 2 * 2),
        scenario("rule: also updates the row that was inserted")
            .setup("create rule again as on insert to item do also update item set rev = rev + 1 where id = new.id")
            .run("insert into item (id) values (1)")
            .gives(&["item I 1", "item U 1"]),
        scenario("rule: also writes another table")
            .setup(ROWS)
            .setup("create rule noted as on delete to item do also insert into list values ('gone ' || old.id)")
            .run("delete from item where id < 3")
            .gives(&["list I gone 1", "list I gone 2", "item D 1", "item D 2"]),
        scenario("rule: does nothing instead")
            .setup(ROWS)
            .setup("create rule kept as on delete to item where old.id = 2 do instead nothing")
            .run("delete from item")
            .gives(&["item D 1", "item D 3"]),
        scenario("rule: updates instead of deleting")
            .setup(ROWS)
            .setup("create rule soft as on delete to item do instead update item set title = 'deleted' where id = old.id")
            .run("delete from item; update item set rev = 2")
            .gives_count(6),
        scenario("rule: on a view, inserts into the table")
            .setup("create view public.letters as select id, name from list; create rule letters_in as on insert to letters do instead (insert into list values (new.id, 'r'); update list set name = new.name where id = new.id)")
            .run("insert into letters values ('a', 'x')")
            .gives(&["list I a", "list U a"]),
        scenario("function: a security definer writes for a role without rights")
            .setup("create function public.add(n bigint) returns void language sql security definer set search_path = public as 'insert into item (id) values (n); update item set rev = 2 where id = n'")
            .run("select add(1), add(2)")
            .gives(&["item I 1", "item U 1", "item I 2", "item U 2"]),
        scenario("function: in a materialized view, a temporary table and an explain")
            .setup(ROWS)
            .setup("create function public.bump() returns setof bigint language sql as 'update item set rev = rev + 1 returning id'")
            .run("create temp table seen as select * from bump(); explain analyze update item set title = 'e'; explain update item set title = 'f'; create temp table more as select bump()")
            .gives_count(9),
    ]
}
