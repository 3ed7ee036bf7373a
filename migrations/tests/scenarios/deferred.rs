//! TX-05: constraint triggers, which may fire as late as the commit.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let at_commit = |events: &str, body: &str| {
        format!(
            "select app_trigger('at_commit', 'after {events}', 'item', 'deferrable initially deferred for each row', $t${body} return null;$t$)"
        )
    };
    vec![
        scenario("deferred: updates the row that was inserted")
            .setup(at_commit("insert", "update item set rev = rev + 1 where id = new.id;"))
            .run("begin; insert into item (id) values (1), (2); update item set title = 'z'; commit")
            .gives(&["item I 1", "item I 2", "item U 1", "item U 2", "item U 1", "item U 2"]),
        scenario("deferred: updates another registered table")
            .setup(at_commit("insert or update", "insert into list values ('at commit ' || new.id) on conflict (id) do update set name = coalesce(list.name, '') || 'x';"))
            .run("begin; insert into item (id) values (1); update item set rev = 2; insert into list values ('b'); commit")
            .gives(&["item I 1", "item U 1", "list I b", "list I at commit 1", "list U at commit 1"]),
        scenario("deferred: deletes the row that was inserted")
            .setup(at_commit("insert", "delete from item where id = new.id;"))
            .run("begin; insert into item (id) values (1), (2); update item set title = 'z'; commit")
            .gives(&["item I 1", "item I 2", "item U 1", "item U 2", "item D 1", "item D 2"]),
        scenario("deferred: brings about more that is deferred")
            .setup(at_commit("insert or update", "if new.rev < 5 then update item set rev = new.rev + 1 where id = new.id; end if;"))
            .run("begin; insert into item (id) values (1); insert into item (id) values (2); commit")
            .gives_count(2 * 5),
        scenario("deferred: whose name sorts before ours")
            .setup("select app_trigger(' at commit', 'after update', 'item', 'deferrable initially deferred for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null;')")
            .setup(ROWS)
            .run("update item set rev = 2")
            .gives_count(6),
        scenario("deferred: made immediate in mid-transaction")
            .setup(at_commit("insert or update", "if new.rev < 3 then update item set rev = rev + 1 where id = new.id; end if;"))
            .run("begin; insert into item (id) values (1); update item set title = 'x'; set constraints all immediate; update item set title = 'y'; delete from item; commit")
            .gives(&["item I 1", "item U 1", "item U 1", "item U 1", "item U 1", "item U 1", "item D 1"]),
        scenario("deferred: immediate from the start, in a trigger that sorts before ours")
            .setup(ROWS)
            .setup("select app_trigger(' now', 'after update', 'item', 'deferrable initially immediate for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null;')")
            .refused("update item set rev = 2 where id = 1"),
        scenario("deferred: immediate from the start, but deferred by the transaction")
            .setup(ROWS)
            .setup("select app_trigger(' now', 'after update', 'item', 'deferrable initially immediate for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null;')")
            .run("begin; set constraints all deferred; update item set rev = 2 where id = 1; commit")
            .gives(&["item U 1", "item U 1"]),
        scenario("deferred: rolled back with its savepoint")
            .setup(at_commit("insert", "update item set rev = 9 where id = new.id;"))
            .run("begin; insert into item (id) values (1); savepoint s; insert into item (id) values (2); rollback to s; insert into item (id) values (3); commit")
            .gives(&["item I 1", "item I 3", "item U 1", "item U 3"]),
        scenario("deferred: fails at the commit")
            .setup(at_commit("insert", "update item set rev = 9 where id = new.id; raise exception 'no';"))
            .fails("P0001", "begin; insert into item (id) values (1); update item set rev = 2; commit"),
        scenario("deferred: the row is gone when it fires")
            .setup(at_commit("insert", "update item set rev = 9 where id = new.id; insert into item (id, rev) values (new.id, 7) on conflict do nothing;"))
            .run("begin; insert into item (id) values (1); delete from item; commit")
            .gives(&["item I 1", "item D 1", "item I 1", "item U 1"]),
        scenario("deferred: a foreign key to a row that comes later")
            .setup("alter table item drop constraint item_list_id_fkey; alter table item add foreign key (list_id) references list on delete cascade deferrable initially deferred")
            .run("begin; insert into item (id, list_id) values (1, 'a'); insert into list values ('a'); update item set rev = 2; delete from list; commit")
            .gives(&["item I 1", "list I a", "item U 1", "list D a", "item D 1"]),
        scenario("deferred: an exclusion of equal values that swaps them")
            .setup("create table public.place (id int primary key, seat int unique deferrable initially deferred); select public.watch('public.place'); insert into place values (1, 1), (2, 2)")
            .run("update place set seat = 3 - seat; update place set seat = 2 where id = 1; update place set seat = 1 where id = 2")
            .gives(&["place U 1", "place U 2", "place U 1", "place U 2"]),
    ]
}
