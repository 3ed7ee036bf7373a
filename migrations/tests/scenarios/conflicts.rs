//! ON CONFLICT, MERGE, and statements with several parts that write.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let mut all = conflicts();
    all.extend(merges());
    all.extend(parts());
    all
}

fn conflicts() -> Vec<Scenario> {
    vec![
        scenario("on conflict do update: of old rows and new ones")
            .setup(ROWS)
            .run("insert into item (id, title) values (1, 'b'), (9, 'b'), (2, 'b') on conflict (id) do update set title = excluded.title")
            .gives(&["item U 1", "item I 9", "item U 2"]),
        scenario("on conflict do update: the row that the transaction inserted")
            .run("insert into item (id) values (1) on conflict (id) do update set rev = 2; insert into item (id) values (1) on conflict (id) do update set rev = 3; delete from item;
                insert into item (id) values (1) on conflict (id) do update set rev = 4")
            .gives(&["item I 1", "item U 1", "item D 1", "item I 1"]),
        scenario("on conflict do update: where it does not apply")
            .setup(ROWS)
            .run("insert into item (id, title) values (1, 'b'), (2, 'b') on conflict (id) do update set title = 'c' where item.id = 2")
            .gives(&["item U 2"]),
        scenario("on conflict do update: of another unique column")
            .setup("create table public.page (id int primary key, slug text unique, n int default 0); select public.watch('public.page'); insert into page values (1, 'a')")
            .run("insert into page values (5, 'a'), (6, 'b') on conflict (slug) do update set n = excluded.id")
            .gives(&["page U 1", "page I 6"]),
        scenario("on conflict do update: a key that changes")
            .setup(ROWS)
            .refused_key("insert into item (id) values (1) on conflict (id) do update set id = 7"),
        scenario("on conflict do update: one row twice")
            .fails("21000", "insert into item (id) values (1), (1) on conflict (id) do update set rev = 2"),
        scenario("on conflict do nothing")
            .setup(ROWS)
            .run("insert into item (id) values (1), (9) on conflict do nothing")
            .gives(&["item I 9"]),
        scenario("on conflict do nothing: with nothing else in the transaction")
            .setup(ROWS)
            .run("insert into item (id) values (1) on conflict do nothing"),
        scenario("on conflict do nothing: a trigger has just inserted the row")
            .setup("select app_trigger('first', 'before insert', 'item', 'for each row', 'if pg_trigger_depth() = 1 then insert into item (id) values (new.id); end if; return new;')")
            .run("insert into item (id) values (1), (2) on conflict do nothing")
            .gives(&["item I 1", "item I 2"]),
        scenario("on conflict: the first writer commits")
            .on(1, "begin; insert into item (id) values (7)")
            .behind(0, "insert into item (id) values (7), (8) on conflict (id) do update set rev = item.rev + 1")
            .on(1, "commit")
            .gives(&["item I 7", "item U 7", "item I 8"]),
        scenario("on conflict: the first writer rolls back")
            .on(1, "begin; insert into item (id) values (7)")
            .behind(0, "insert into item (id) values (7), (8) on conflict (id) do update set rev = item.rev + 1")
            .on(1, "rollback")
            .gives(&["item I 7", "item I 8"]),
        scenario("on conflict: the first writer deletes the row")
            .setup("insert into item (id) values (7)")
            .on(1, "begin; delete from item")
            .behind(0, "insert into item (id) values (7) on conflict (id) do update set rev = item.rev + 1")
            .on(1, "commit")
            .gives(&["item D 7", "item I 7"]),
    ]
}

fn merges() -> Vec<Scenario> {
    let merge = "merge into item i using (values (1), (2), (9)) s (id) on i.id = s.id";
    vec![
        scenario("merge: inserts, updates and deletes")
            .setup(ROWS)
            .run(format!("{merge} when matched and s.id = 1 then update set title = 'z' when matched then delete when not matched then insert (id) values (s.id)"))
            .gives(&["item U 1", "item D 2", "item I 9"]),
        scenario("merge: does nothing")
            .setup(ROWS)
            .run(format!("{merge} when matched then do nothing when not matched then do nothing")),
        scenario("merge: inserts what the transaction has just deleted")
            .setup(ROWS)
            .run(format!("delete from item; {merge} when matched then delete when not matched then insert (id, rev) values (s.id, 5); {merge} when matched then update set rev = 6"))
            .gives_count(3 + 3 + 3),
        scenario("merge: a key that changes")
            .setup(ROWS)
            .refused_key(format!("{merge} when matched then update set id = s.id + 100")),
        scenario("merge: one row twice")
            .setup(ROWS)
            .fails("21000", "merge into item i using (values (1), (1)) s (id) on i.id = s.id when matched then update set rev = 2"),
        scenario("merge: rows that the source lacks")
            .since(17)
            .setup(ROWS)
            .run(format!("{merge} when not matched by source then delete when matched then update set rev = 2 when not matched then insert (id) values (s.id) returning merge_action(), i.id"))
            .gives_count(4),
        scenario("merge: with triggers that write the row again")
            .setup(ROWS)
            .setup("select app_trigger('z_again', 'after insert or update', 'item', 'for each row', 'update item set rev = rev + 1 where id = new.id and rev < 3; return null;')")
            .run(format!("{merge} when matched then update set title = 'm' when not matched then insert (id) values (s.id)"))
            .gives_count(3 + 3 * 2),
    ]
}

fn parts() -> Vec<Scenario> {
    vec![
        scenario("with: deletes and inserts one key")
            .setup(ROWS)
            .run("with gone as (delete from item returning *) insert into item (id, title) select id, title || '!' from gone")
            .gives(&["item D 1", "item I 1", "item D 2", "item I 2", "item D 3", "item I 3"]),
        scenario("with: deletes, inserts, and the transaction goes on")
            .setup(ROWS)
            .run("update item set rev = 2; with gone as (delete from item returning *) insert into item (id, rev) select id, rev + 1 from gone; update item set rev = 7; delete from item where id = 2")
            .gives_count(3 + 6 + 3 + 1),
        scenario("with: updates a row that the main part deletes")
            .setup(ROWS)
            .run("with u as (update item set rev = 2 where id = 1 returning id) delete from item using u where item.id = u.id")
            .gives(&["item U 1"]),
        scenario("with: an update that nobody reads of a row that the main part deletes")
            .setup(ROWS)
            .run("with u as (update item set rev = 2 where id = 1) delete from item where id = 1")
            .gives(&["item D 1"]),
        scenario("with: an insert that the main part does not see")
            .run("with n as (insert into item (id) values (9) returning id) update item set rev = 5 where id in (select id from n)")
            .gives(&["item I 9"]),
        scenario("with: two tables that refer to each other")
            .run("with l as (insert into list values ('a') returning id) insert into item (id, list_id) select g, id from l, generate_series(1, 2) g")
            .gives(&["list I a", "item I 1", "item I 2"]),
        scenario("with: deletes parent and child at once")
            .setup("insert into list values ('a'), ('b'); insert into item (id, list_id) values (1, 'a'), (2, 'a'), (3, 'b')")
            .run("with l as (delete from list where id = 'a') delete from item where id = 1")
            .gives(&["item D 1", "list D a", "item D 2"]),
        scenario("with: three parts on three rows of one table")
            .setup(ROWS)
            .run("with a as (update item set rev = 2 where id = 1 returning 1), b as (delete from item where id = 2 returning 1), c as (insert into item (id) values (4) returning 1)
                update item set rev = 3 where id = 3")
            .gives_count(4),
        scenario("with: one key inserted twice")
            .fails("23505", "with a as (insert into item (id) values (1)) insert into item (id) values (1)"),
    ]
}
